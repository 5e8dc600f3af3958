"""Tiny Covo-Audio checkpoints."""
