"""Load tests of a running service: `python -m antiphon_tools.load`.

The modules arrivals, player, statistics, objectives, measured, capacity, summary and plots only
consist of functions without side effects. Of the remaining modules, run determines when requests
start, the drivers send requests and observe the responses, processes measures resource usage, and
target starts the service.
"""
