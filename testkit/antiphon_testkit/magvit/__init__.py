"""Tiny MAGVITv2 networks."""
