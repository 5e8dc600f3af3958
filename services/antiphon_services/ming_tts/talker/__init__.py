"""Text to latents of audio."""
