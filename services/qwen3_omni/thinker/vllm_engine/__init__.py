"""The `vllm` engine of the thinker: stock vLLM in processes of its own, and the way to it.

Runs in vLLM's processes: `model`, `tap`, `connector`, `spans`, `row_sender`, `plugin`
(which the stage's process has too). Runs in the stage: everything else.
"""
