"""The consumer's end of links."""
