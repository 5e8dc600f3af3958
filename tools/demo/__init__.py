"""A demonstration of the whole system: `python -m tools.demo`."""
