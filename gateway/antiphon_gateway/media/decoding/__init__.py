"""Decodes recordings. WAV files are decoded in the gateway, and all other formats in child
processes.
"""
