"""Decides who can send requests, based on a file with API keys and their limits."""
