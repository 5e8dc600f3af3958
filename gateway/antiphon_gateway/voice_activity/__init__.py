"""Detects whether someone is speaking. This package contains silero's network, the rule that
determines turns from its output, and its thread.

`silero.npz` contains the weights of silero-vad 6.2.3 (`silero_vad_16k_op15.onnx` in its wheel, MIT
license, see `LICENSE-silero`). `tools/antiphon_tools/silero_weights.py` creates this file.
"""
