"""Runs the layers of the language model on vLLM, with its paged KV cache.

Only `model` runs in vLLM's processes. Everything else runs in the stage. A session of the stage is
a single vLLM request whose input grows by one position per step. The input for a text position is
its token. The input for a group of frames is a row that the stage's group encoder computes. vLLM
returns the last hidden state of each position, and the stage draws from it in the same way as the
torch engine.
"""
