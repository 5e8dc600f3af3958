"""What the first call after a start costs."""
