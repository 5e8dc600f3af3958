"""What a fleet costs that has nothing to do."""
