"""Measures the cost of an idle fleet."""
