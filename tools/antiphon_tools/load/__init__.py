"""Load tests of a running service: `python -m antiphon_tools.load`.

Pure: arrivals, player, statistics, objectives, measured, capacity, summary, plots.
Shells: run (when requests start), the drivers (how one request is made and watched),
processes (what the services use), target (what is started).
"""
