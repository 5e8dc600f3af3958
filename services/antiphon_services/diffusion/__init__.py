"""Masked diffusion: all positions of an answer start out masked, and are drawn over several
steps.
"""
