"""The `vllm` engine of the thinker, on what `services.vllm` has for any stage.

Runs in vLLM's processes: `model`. Runs in the stage: everything else.
"""
