"""The test kit of Qwen3-TTS: tiny checkpoints, and what the vendor's package made of them."""
