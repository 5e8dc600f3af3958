"""Says what it was told."""
