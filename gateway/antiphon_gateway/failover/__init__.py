"""Continues answers after a replica has been lost."""
