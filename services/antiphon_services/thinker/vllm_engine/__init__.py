"""A thinker's `vllm` engine, which is based on `antiphon_services.vllm`.

This package runs in the stage. Each family adds its `VllmCheckpoint`, which includes a tapped
model.
"""
