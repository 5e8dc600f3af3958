"""Runs a whole deployment on this machine: `python -m antiphon_tools.launcher up`."""
