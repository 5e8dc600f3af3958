"""Answers that continue when a replica is lost."""
