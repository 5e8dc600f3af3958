"""Masked diffusion. All positions of an answer start out masked and are drawn over several
steps.
"""
