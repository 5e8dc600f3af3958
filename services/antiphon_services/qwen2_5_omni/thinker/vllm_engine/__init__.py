"""The parts of the thinker's `vllm` engine that are specific to Qwen2.5-Omni.

`model` runs in vLLM's processes, and all other modules run in the stage.
"""
