"""Injects faults into a running deployment, and checks that clients receive unchanged answers."""
