"""Words in, words and lines out."""
