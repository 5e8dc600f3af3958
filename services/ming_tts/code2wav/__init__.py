"""Latents to samples."""
