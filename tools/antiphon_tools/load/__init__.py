"""Load tests for a running service: `python -m antiphon_tools.load`.

The modules `arrivals`, `player`, `statistics`, `objectives`, `measured`, `capacity`, `summary` and
`plots` consist of functions without side effects. Among the other modules, `run` schedules the
requests, the drivers send them and observe the responses, `processes` measures resource usage, and
`target` starts the service.
"""
