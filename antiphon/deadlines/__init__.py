"""Timers and deadlines that don't count time during which the process wasn't running."""
