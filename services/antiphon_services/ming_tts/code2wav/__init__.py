"""The code2wav stage, which converts latents to samples."""
