"""The `vllm` engine of a thinker. It is based on `antiphon_services.vllm`.

This package runs in the stage. A family adds its `VllmCheckpoint`, which includes a tapped model.
"""
