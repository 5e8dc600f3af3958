"""Codes to samples: a diffusion transformer makes mel frames, a vocoder the waveform."""
