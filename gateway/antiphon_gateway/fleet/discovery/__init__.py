"""Discovers the replicas of each stage and their addresses."""
