"""Tiny checkpoints of Ming-flash-omni."""
