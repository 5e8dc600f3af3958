"""Codes to samples: the decoder of the audio tokenizer."""
