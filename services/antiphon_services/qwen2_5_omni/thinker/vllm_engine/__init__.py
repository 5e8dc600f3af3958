"""What Qwen2.5-Omni adds to the thinkers' `vllm` engine.

Runs in vLLM's processes: `model`. Runs in the stage: everything else.
"""
