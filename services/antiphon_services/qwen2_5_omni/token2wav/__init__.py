"""The token2wav stage. A diffusion transformer computes mel frames from codes, and a vocoder
computes samples from these frames.
"""
