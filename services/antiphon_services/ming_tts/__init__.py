"""Ming TTS, which generates speech from text in a given voice."""
