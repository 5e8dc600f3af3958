"""Whether somebody speaks: silero's network, the rule that makes turns of it, and its thread.

`silero.npz` has the weights of silero-vad 6.2.3 (`silero_vad_16k_op15.onnx` of its wheel, MIT, see
`LICENSE-silero`), written by `tools/antiphon_tools/silero_weights.py`.
"""
