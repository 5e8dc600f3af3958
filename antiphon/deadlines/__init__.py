"""Timers and deadlines that discount the time in which the process itself did not run."""
