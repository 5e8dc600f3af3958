"""What it costs to open a call."""
