"""Decoding of recordings: WAV in the gateway, every other format in child processes."""
