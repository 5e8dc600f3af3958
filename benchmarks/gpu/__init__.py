"""Verifies and measures everything on a GPU: `python -m benchmarks.gpu --help`."""
