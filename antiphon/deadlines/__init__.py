"""Timers and deadlines that discount time during which the process did not run."""
