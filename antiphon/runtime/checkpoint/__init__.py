"""Reads checkpoint directories. This includes fingerprints, weights, and individual modules.

torch is imported only when weights are read.
"""
