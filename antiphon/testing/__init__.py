"""Public test kit: tiny checkpoints, the Hugging Face reference, fakes and drivers."""
