"""A tiny checkpoint of Dynin-Omni."""
