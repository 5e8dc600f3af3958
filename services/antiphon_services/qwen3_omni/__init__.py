"""Qwen3-Omni. Each stage has its own package."""
