"""Reads checkpoint directories: their fingerprint, their weights, and individual modules.

torch is only imported when weights are read.
"""
