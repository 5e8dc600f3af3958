"""Masked diffusion, in which all positions of an answer are masked at first and are then drawn in
several steps.
"""
