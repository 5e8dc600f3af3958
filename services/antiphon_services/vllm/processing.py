"""How vLLM's processors are told of recordings that come as features."""

from __future__ import annotations

from collections.abc import Mapping

from vllm.multimodal.parse import MultiModalDataItems
from vllm.multimodal.processing.processor import BaseMultiModalProcessor, HFMultiModalInputs


class FeaturesBesidePixels(BaseMultiModalProcessor):  # type: ignore[type-arg, unused-ignore]
    """Comes before a stock processor, for features of recordings beside images and videos.

    Hugging Face's processor is run for these alone; but the stock one shows it places for the
    recordings too, of whose lengths it knows nothing.
    """

    def _get_hf_mm_inputs(
        self, mm_items: MultiModalDataItems, hf_kwargs: Mapping[str, object]
    ) -> HFMultiModalInputs:
        inputs: HFMultiModalInputs = super()._get_hf_mm_inputs(mm_items, hf_kwargs)
        if "text" in inputs.hf_data and "audio" not in inputs.hf_data:
            seen = {kind: n for kind, n in mm_items.get_all_counts().items() if kind != "audio"}
            inputs.hf_data["text"] = self._get_hf_mm_text(seen)
        return inputs
