"""Measures the cost of opening a call."""
