"""Streaming decoding of codec frames to samples, for families that have a causal vocoder."""
