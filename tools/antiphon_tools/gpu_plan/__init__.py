"""`antiphon plan`: estimate how much memory a model's stages need and how many sessions fit on
GPUs.

This does not start any process and does not read weights. The sizes are derived from configuration
files and the headers of weight files.
"""
