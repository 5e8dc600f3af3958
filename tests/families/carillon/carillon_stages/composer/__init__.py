"""Text in, strokes out."""
