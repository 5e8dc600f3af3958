"""Capacity planning: from measured stages and an offered load to replicas, GPUs and cost.

`measured.py` and `offered.py` are what goes in, `simulation` is the discrete-event simulation,
`plan.py` looks for the cheapest fleet, `limits.py` for where the gateway ends. See
docs/sizing.md.
"""
