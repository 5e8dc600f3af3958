"""Decodes recordings. WAV files are decoded in the gateway, while all other formats are decoded in
child processes.
"""
