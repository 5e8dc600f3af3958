"""The model that the talker brings to vLLM; read before vLLM is imported."""

from __future__ import annotations

GROUPED = "AntiphonMiMoAudioLayers"
MODELS = {GROUPED: "antiphon_services.mimo_audio.talker.vllm_engine.model:GroupedLayers"}
"""Class by architecture, in vLLM's form `module:name`."""
