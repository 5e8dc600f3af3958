"""A demonstration of the whole system: `python -m antiphon_tools.demo`."""
