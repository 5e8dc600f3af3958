"""Writes the generated files of the Helm chart: `python -m antiphon_tools.chart`."""
