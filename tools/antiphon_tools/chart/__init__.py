"""Writes what the Helm chart has from elsewhere: `python -m antiphon_tools.chart`."""
