"""MiMo-Audio, which converts speech and text to speech and text."""
