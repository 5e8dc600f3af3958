"""Tiny EMOVA speech tokenizers."""
