"""The simulation: pure, and the same for the same seed.

`clock.py` has the events, `processor.py` who shares cores. `steps.py` simulates every engine
step and message, for fleets of some hundred calls; `fluid.py` simulates calls whose stages
progress at measured rates, for fleets of tens of thousands.
"""
