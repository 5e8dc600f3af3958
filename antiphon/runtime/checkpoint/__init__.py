"""Reads a checkpoint directory: its fingerprint, its weights and single modules.

torch is imported only when weights are read.
"""
