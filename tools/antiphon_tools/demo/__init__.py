"""A demonstration of the complete system: `python -m antiphon_tools.demo`."""
