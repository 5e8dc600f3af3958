"""Tiny CosyVoice3 checkpoints."""
