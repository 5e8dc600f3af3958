"""The token2wav stage: a diffusion transformer computes mel frames from codes, and a vocoder the
samples."""
