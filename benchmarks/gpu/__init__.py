"""Proves and measures everything where there is a GPU; see `python -m benchmarks.gpu --help`."""
