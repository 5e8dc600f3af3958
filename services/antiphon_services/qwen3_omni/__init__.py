"""Qwen3-Omni, with a package for each stage."""
