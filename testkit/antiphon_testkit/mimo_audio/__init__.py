"""Tiny MiMo-Audio checkpoints."""
