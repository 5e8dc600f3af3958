"""The token2wav stage. A diffusion transformer turns codes into mel frames, and a vocoder turns
these frames into samples.
"""
