"""Tells KEDA how many slots of each stage are needed by all gateways together."""
