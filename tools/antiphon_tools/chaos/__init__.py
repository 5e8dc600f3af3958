"""Inject faults into a running deployment, and check that clients receive undisturbed answers."""
