"""Measures the effect of attacks on other clients."""
