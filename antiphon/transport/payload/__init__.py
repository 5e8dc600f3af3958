"""Payload transports: one file and one row of `registry.py` each."""
