"""Measures the cost of the stage runtime, with real processes and engines that do nothing."""
