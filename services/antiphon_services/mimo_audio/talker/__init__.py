"""Text, and speech as codes, to text and codes."""
