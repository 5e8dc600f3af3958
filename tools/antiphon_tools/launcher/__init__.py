"""Runs a complete deployment on this machine: `python -m antiphon_tools.launcher up`."""
