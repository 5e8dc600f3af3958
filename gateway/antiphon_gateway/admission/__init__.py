"""Determines which request starts next, and limits the use of memory and slots."""
