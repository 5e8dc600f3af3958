"""Speaks units."""
