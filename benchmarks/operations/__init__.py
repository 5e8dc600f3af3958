"""Counts the operations that a step performs on its device."""
