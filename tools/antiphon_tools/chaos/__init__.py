"""Breaks a running fleet in every way, and checks that nobody who listens to it hears that."""
