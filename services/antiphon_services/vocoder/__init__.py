"""Streaming decoding of codec frames to audio samples, for families with a causal vocoder."""
