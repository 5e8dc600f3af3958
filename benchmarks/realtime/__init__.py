"""Measures the cost of a realtime conversation in the gateway."""
