"""A deployment: its schema, and the launcher that runs one on this machine."""
