"""Runs an engine. This package contains the engine thread, its rounds, and the batches that are
exchanged with it.
"""
