"""Qwen3-Omni: a folder for each stage."""
