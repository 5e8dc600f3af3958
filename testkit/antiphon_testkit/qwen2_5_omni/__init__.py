"""Qwen2.5-Omni with tiny random weights, and Hugging Face's output for it."""
