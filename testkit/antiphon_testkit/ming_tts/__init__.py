"""Tiny Ming TTS checkpoints."""
