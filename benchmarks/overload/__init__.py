"""Measures how a gateway handles more requests than it can answer."""
