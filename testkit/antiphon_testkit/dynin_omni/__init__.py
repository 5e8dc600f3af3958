"""A tiny Dynin-Omni checkpoint."""
