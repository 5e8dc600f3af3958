"""Qwen3-Omni with tiny random weights, and what Hugging Face makes of it."""
