"""Downloads checkpoints from the Hugging Face Hub, or from a server with the same API.

Checkpoints are stored in the hub's own cache. Commands that start a model download it first. Stage
processes never download anything.
"""
