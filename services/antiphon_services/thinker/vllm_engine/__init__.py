"""The `vllm` engine of a thinker, on what `antiphon_services.vllm` has for any stage.

Runs in the stage. What a family adds is its `VllmCheckpoint`, with a model that has a tap.
"""
