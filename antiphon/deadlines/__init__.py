"""Timers and deadlines that ignore time during which the process was not running."""
