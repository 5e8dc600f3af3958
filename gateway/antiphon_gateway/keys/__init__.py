"""Determines who may send requests. API keys and their limits are read from a file."""
