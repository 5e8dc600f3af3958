"""How payloads travel: a file and a row of `registry.py` for each transport."""
