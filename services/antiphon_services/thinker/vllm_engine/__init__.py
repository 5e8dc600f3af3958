"""The `vllm` engine of a thinker, based on `antiphon_services.vllm`.

Runs in the stage. A family adds its `VllmCheckpoint`, with a tapped model.
"""
