"""Checkpoints from the Hugging Face hub, or a server with its API, in the hub's own cache.

Commands that start a model download it first; the processes of its stages never do.
"""
