"""The model classes that the thinker registers with vLLM. This module must not import vLLM, because
it is used before vLLM is imported.
"""

from __future__ import annotations

TAPPED_THINKER = "AntiphonTappedQwen3OmniThinker"
MODELS = {TAPPED_THINKER: "antiphon_services.qwen3_omni.thinker.vllm_engine.model:TappedThinker"}
"""Maps each architecture to its class, in vLLM's form `module:name`."""
