"""The simulation. It is deterministic for a given seed.

`clock.py` contains the events, and `processor.py` simulates shared cores. `steps.py` simulates
every engine step and message, for fleets with several hundred calls. `fluid.py` simulates calls
whose stages progress at measured rates, for fleets with tens of thousands of calls.
"""
