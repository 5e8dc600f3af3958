"""The model class that the talker registers with vLLM. It is read before vLLM is imported."""

from __future__ import annotations

GROUPED = "AntiphonMiMoAudioLayers"
MODELS = {GROUPED: "antiphon_services.mimo_audio.talker.vllm_engine.model:GroupedLayers"}
"""Maps architectures to classes, in the format `module:name` that vLLM uses."""
