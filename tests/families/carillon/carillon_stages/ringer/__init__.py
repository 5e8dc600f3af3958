"""Strokes in, samples out."""
