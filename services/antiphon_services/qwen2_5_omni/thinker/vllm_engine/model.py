"""vLLM's Qwen2.5-Omni thinker, with a tap that keeps the talker's row for each position.

A row is the last hidden state, after the final norm, plus the word embedding. Positions of audio,
images and videos don't have a word embedding. vLLM's runner specifies these positions when it
requests embeddings, which can happen outside of a CUDA graph. `forward`, which may run inside a
CUDA graph, reads them from a buffer at a fixed address.
"""

from __future__ import annotations

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import MultiModalEmbeddings
from vllm.model_executor.models.qwen2_5_omni_thinker import (
    Qwen2_5OmniThinkerDummyInputsBuilder,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2_5OmniThinkerMultiModalProcessor,
    Qwen2_5OmniThinkerProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.sequence import IntermediateTensors

from antiphon_services.vllm.positions import HeardLikeWords
from antiphon_services.vllm.processing import FeaturesBesidePixels
from antiphon_services.vllm.tap import TapLayer


class FeatureProcessor(FeaturesBesidePixels, Qwen2_5OmniThinkerMultiModalProcessor):
    """vLLM's processor for conversations that contain audio features together with images."""


@MULTIMODAL_REGISTRY.register_processor(
    FeatureProcessor,
    info=Qwen2_5OmniThinkerProcessingInfo,
    dummy_inputs=Qwen2_5OmniThinkerDummyInputsBuilder,
)
class RowThinker(HeardLikeWords, Qwen2_5OmniThinkerForConditionalGeneration):
    """vLLM's model, which also keeps the talker's row for every position."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.antiphon_tap = TapLayer(self.config.text_config.hidden_size, vllm_config.cache_config)
        positions = vllm_config.scheduler_config.max_num_batched_tokens
        self._wordless: torch.Tensor
        self.register_buffer("_wordless", torch.zeros(positions, 1).bool(), persistent=False)

    def embed_input_ids(
        self,
        input_ids: torch.Tensor,
        multimodal_embeddings: MultiModalEmbeddings | None = None,
        *,
        is_multimodal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return vLLM's embeddings [tokens, hidden] for a step and record which positions don't
        contain a word.
        """
        wordless = self._wordless[: len(input_ids), 0]
        if is_multimodal is None:
            wordless.zero_()
        else:
            wordless.copy_(is_multimodal, non_blocking=True)
        embeddings: torch.Tensor = super().embed_input_ids(
            input_ids, multimodal_embeddings, is_multimodal=is_multimodal
        )
        return embeddings

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        """Return the hidden states [tokens, hidden] of vLLM's `forward` and store the talker's rows
        in the cache.
        """
        if inputs_embeds is None:
            # This thinker doesn't support any media, so the buffer is empty.
            inputs_embeds = self.language_model.model.embed_input_ids(input_ids)
        # Make a copy, because the layers may modify their input in place.
        words = inputs_embeds.masked_fill(self._wordless[: len(inputs_embeds)], 0.0)
        hidden: torch.Tensor = super().forward(
            input_ids, positions, intermediate_tensors, inputs_embeds=inputs_embeds, **kwargs
        )
        self.antiphon_tap((hidden + words).unsqueeze(1))
        return hidden
