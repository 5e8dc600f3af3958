"""CosyVoice3, which generates speech from text in a given voice."""
