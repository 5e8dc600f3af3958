"""Draws the images of tokens."""
