"""Reads checkpoint directories. This includes their fingerprint, their weights, and individual
modules.

torch is imported only when weights are read.
"""
