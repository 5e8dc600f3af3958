"""Stepping of an engine: its thread, its rounds and the batches in between."""
