"""Ming TTS: text and a voice to speech."""
