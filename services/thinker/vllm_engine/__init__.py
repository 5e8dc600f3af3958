"""The `vllm` engine of the thinker: stock vLLM in processes of its own, and the way to it.

Runs in vLLM's processes: `model`, `tap`, `connector`, `spans`, `row_sender`. Runs in the
stage: everything else.
"""
