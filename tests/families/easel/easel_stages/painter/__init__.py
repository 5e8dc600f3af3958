"""Lines in, an image out."""
