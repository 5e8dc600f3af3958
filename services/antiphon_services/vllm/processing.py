"""Adapts vLLM's processors to recordings that are passed as features."""

from __future__ import annotations

from collections.abc import Mapping

from vllm.multimodal.parse import MultiModalDataItems
from vllm.multimodal.processing.processor import BaseMultiModalProcessor, HFMultiModalInputs


class FeaturesBesidePixels(BaseMultiModalProcessor):  # type: ignore[type-arg, unused-ignore]
    """A mixin for a processor of vLLM that supports features of recordings together with images and
    videos. It must precede the processor in the list of base classes.

    Hugging Face's processor only processes images and videos. However, vLLM's code also passes it
    the placeholders of the recordings, whose lengths it does not know.
    """

    def _get_hf_mm_inputs(
        self, mm_items: MultiModalDataItems, hf_kwargs: Mapping[str, object]
    ) -> HFMultiModalInputs:
        inputs: HFMultiModalInputs = super()._get_hf_mm_inputs(mm_items, hf_kwargs)
        if "text" in inputs.hf_data and "audio" not in inputs.hf_data:
            seen = {kind: n for kind, n in mm_items.get_all_counts().items() if kind != "audio"}
            inputs.hf_data["text"] = self._get_hf_mm_text(seen)
        return inputs
