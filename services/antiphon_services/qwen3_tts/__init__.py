"""The stages of Qwen3-TTS."""
