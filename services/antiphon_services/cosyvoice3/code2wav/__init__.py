"""Codes to samples: a flow makes mel frames, a vocoder the waveform."""
