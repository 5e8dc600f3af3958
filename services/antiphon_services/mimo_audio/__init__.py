"""MiMo-Audio: speech and text to speech and text."""
