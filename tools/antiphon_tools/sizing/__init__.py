"""Capacity planning: computes replicas, GPUs and costs from measured stages and an offered load.

The input is defined in `measured.py` and `offered.py`. `simulation` contains the discrete-event
simulation, `plan.py` searches for the cheapest fleet, and `limits.py` determines the limits of the
gateway. `docs/sizing.md` describes the tool.
"""
