"""The model classes that the thinker registers with vLLM; read before vLLM is imported."""

from __future__ import annotations

TAPPED_THINKER = "AntiphonTappedQwen3OmniThinker"
MODELS = {TAPPED_THINKER: "antiphon_services.qwen3_omni.thinker.vllm_engine.model:TappedThinker"}
"""Class by architecture, in vLLM's form `module:name`."""
