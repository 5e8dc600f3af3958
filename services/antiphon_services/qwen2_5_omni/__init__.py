"""The stages of Qwen2.5-Omni."""
