"""Masked diffusion: all positions of an answer start masked and are drawn in several steps."""
