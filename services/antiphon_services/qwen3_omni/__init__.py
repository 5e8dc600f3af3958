"""Qwen3-Omni. There is a package for each stage."""
