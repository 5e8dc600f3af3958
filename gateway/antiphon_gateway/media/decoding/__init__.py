"""Decoding of recordings. WAV files are decoded in the gateway, and all other formats are decoded
in child processes.
"""
