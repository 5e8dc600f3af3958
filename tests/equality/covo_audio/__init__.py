"""Covo-Audio against recorded answers of the vendor's code."""
