"""What traces cost, and one drawn."""
