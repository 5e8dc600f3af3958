"""The model classes that the thinker registers with vLLM. This module must not import vLLM, because
it is used before vLLM is imported.
"""

from __future__ import annotations

TAPPED_THINKER = "AntiphonTappedQwen2_5OmniThinker"
MODELS = {TAPPED_THINKER: "antiphon_services.qwen2_5_omni.thinker.vllm_engine.model:RowThinker"}
"""Maps each architecture to its class, in vLLM's form `module:name`."""
