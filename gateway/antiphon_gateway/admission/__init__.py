"""Who begins next, and bounds of bytes and slots."""
