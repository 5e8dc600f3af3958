"""Measures the speed of single engines, compared to the reference and to alternatives."""
