"""Dynin-Omni against recorded answers of the vendor's code."""
