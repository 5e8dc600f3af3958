"""Measures messages between two processes: `python -m benchmarks.transport --help`."""
