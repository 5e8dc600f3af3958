"""The producer's end of links."""
