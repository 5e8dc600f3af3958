"""Runs a whole deployment on this machine: `python -m tools.launcher up`."""
