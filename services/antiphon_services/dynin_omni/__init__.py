"""Dynin-Omni: a masked-diffusion thinker, and decoders of its speech units and image tokens."""
