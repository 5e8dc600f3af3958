"""What a stage reads of a checkpoint directory: its fingerprint, its weights, modules of it.

Nothing here imports torch until weights are read.
"""
