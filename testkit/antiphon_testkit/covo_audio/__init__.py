"""Tiny checkpoints of Covo-Audio."""
