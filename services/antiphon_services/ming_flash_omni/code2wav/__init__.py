"""The code2wav stage, which decodes frames of latents to samples."""
