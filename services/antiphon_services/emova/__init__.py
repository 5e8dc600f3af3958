"""EMOVA's speech tokenizer: recordings to speech units, and units to speech."""
