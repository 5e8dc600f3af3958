"""`antiphon plan`: the memory of a model's stages, and how many sessions GPUs hold.

Nothing is started and no weights are read: sizes come from configuration and headers.
"""
