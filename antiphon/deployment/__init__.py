"""Deployments: the YAML schema and the local launcher."""
