"""Voice activity detection. This package contains silero's network, the code that derives turns
from its output, and the thread that runs it.

`silero.npz` contains the weights of silero-vad 6.2.3 (`silero_vad_16k_op15.onnx` in its wheel, MIT
license, see `LICENSE-silero`). The file is created by `tools/antiphon_tools/silero_weights.py`.
"""
