"""Draws text, speech units or image tokens."""
