"""Decides which request starts next and limits the memory and slots that are used."""
