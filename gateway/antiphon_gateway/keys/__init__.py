"""Determines who may send requests, based on a file of API keys and their limits."""
