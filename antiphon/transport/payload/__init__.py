"""Payload transports. Each of them is one file and one row in `registry.py`."""
