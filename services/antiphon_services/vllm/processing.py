"""Adapts vLLM's processors to recordings that are passed as features."""

from __future__ import annotations

from collections.abc import Mapping

from vllm.multimodal.parse import MultiModalDataItems
from vllm.multimodal.processing.processor import BaseMultiModalProcessor, HFMultiModalInputs


class FeaturesBesidePixels(BaseMultiModalProcessor):  # type: ignore[type-arg, unused-ignore]
    """A mixin for vLLM processors that allows images and videos to be combined with recordings that
    are passed as features. It must precede the processor in the list of base classes.

    Hugging Face's processor only handles the images and videos. vLLM's code nevertheless passes it
    the placeholders for recordings, whose lengths the processor doesn't know.
    """

    def _get_hf_mm_inputs(
        self, mm_items: MultiModalDataItems, hf_kwargs: Mapping[str, object]
    ) -> HFMultiModalInputs:
        inputs: HFMultiModalInputs = super()._get_hf_mm_inputs(mm_items, hf_kwargs)
        if "text" in inputs.hf_data and "audio" not in inputs.hf_data:
            seen = {kind: n for kind, n in mm_items.get_all_counts().items() if kind != "audio"}
            inputs.hf_data["text"] = self._get_hf_mm_text(seen)
        return inputs
