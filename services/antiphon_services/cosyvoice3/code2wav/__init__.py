"""The code2wav stage.

A flow-matching model computes mel frames from speech codes, and a vocoder converts the frames to
samples.
"""
