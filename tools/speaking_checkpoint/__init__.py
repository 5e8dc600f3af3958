"""Trains a small Qwen3-Omni-MoE checkpoint that really speaks, and judges it."""
