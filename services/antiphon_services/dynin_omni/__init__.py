"""Dynin-Omni, which consists of a masked-diffusion thinker and two decoders.

The decoders convert speech units to audio and image tokens to images.
"""
