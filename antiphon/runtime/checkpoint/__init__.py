"""Reads a checkpoint directory, including its fingerprint, its weights and individual modules.

torch is only imported when weights are read.
"""
