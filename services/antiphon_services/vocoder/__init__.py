"""Streaming decoding of codec frames to samples, for families with a causal vocoder."""
