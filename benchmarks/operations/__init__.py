"""What a step asks its device for."""
