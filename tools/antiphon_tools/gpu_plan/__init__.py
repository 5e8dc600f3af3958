"""`antiphon plan`: estimate the memory of a model's stages, and how many sessions fit on GPUs.

This does not start any process and does not read weights. The sizes are derived from configuration
files and the headers of weight files.
"""
