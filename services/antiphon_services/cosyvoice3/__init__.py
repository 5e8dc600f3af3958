"""CosyVoice3: text and a voice to speech."""
