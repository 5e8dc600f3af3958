"""Streaming decode of codec frames to samples, for the families whose vocoder is causal."""
