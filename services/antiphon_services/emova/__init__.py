"""EMOVA's speech tokenizer, which converts recordings to speech units and units to speech."""
