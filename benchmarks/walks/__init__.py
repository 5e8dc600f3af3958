"""Measures how much of the gateway's code a request executes."""
