"""Writes what the Helm chart has from elsewhere: `python -m tools.chart`."""
