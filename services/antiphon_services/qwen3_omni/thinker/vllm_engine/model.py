"""vLLM's Qwen3-Omni thinker, with a tap for hidden rows. It encodes audio in the same way as
Hugging Face.

The audio tower pads its chunks to the longest chunk in the call and derives the size of its
attention windows from this length. As a result, the rows of a short recording depend on the other
recordings in the call. In Hugging Face, these are the other recordings of the conversation, whereas
in vLLM they are the other recordings of the step. Here, each item is one of the tower's attention
windows, and the width of its mask is the length to which it must be padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3_omni_moe_thinker import (
    Qwen3OmniMoeThinkerDummyInputsBuilder,
    Qwen3OmniMoeThinkerForConditionalGeneration,
    Qwen3OmniMoeThinkerMultiModalProcessor,
    Qwen3OmniMoeThinkerProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.sequence import IntermediateTensors

from antiphon_services.vllm.positions import HeardLikeWords
from antiphon_services.vllm.processing import FeaturesBesidePixels
from antiphon_services.vllm.tap import TapLayer


class MixedProcessor(FeaturesBesidePixels, Qwen3OmniMoeThinkerMultiModalProcessor):
    """vLLM's processor, for conversations that contain audio features together with images or
    videos.
    """


@MULTIMODAL_REGISTRY.register_processor(
    MixedProcessor,
    info=Qwen3OmniMoeThinkerProcessingInfo,
    dummy_inputs=Qwen3OmniMoeThinkerDummyInputsBuilder,
)
class TappedThinker(HeardLikeWords, Qwen3OmniMoeThinkerForConditionalGeneration):
    """vLLM's model, which also keeps the input of layer `talker_config.accept_hidden_layer`."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        config = vllm_config.model_config.hf_config
        self.set_aux_hidden_state_layers((config.talker_config.accept_hidden_layer,))
        hidden = config.thinker_config.text_config.hidden_size
        self.antiphon_tap = TapLayer(hidden, vllm_config.cache_config)
        self._tapped_layer: int = config.talker_config.accept_hidden_layer

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        """Return the hidden states [tokens, hidden] of vLLM's `forward` and store the tapped rows
        in the cache.
        """
        seen = self._seen_after(inputs_embeds)
        out = super().forward(
            input_ids, positions, intermediate_tensors, inputs_embeds=inputs_embeds, **kwargs
        )
        hidden: torch.Tensor
        hidden, (rows,) = out
        if seen is not None:
            rows = rows - seen
        self.antiphon_tap(rows.unsqueeze(1))
        return hidden

    def _seen_after(self, inputs_embeds: torch.Tensor | None) -> torch.Tensor | None:
        """Return what vLLM adds to the tapped rows for images [tokens, hidden].

        Hugging Face only adds it after recording the rows. Returns None if the tapped layer comes
        after all layers with such additions.
        """
        level = self._tapped_layer - 1
        if inputs_embeds is None or not 0 <= level < self.deepstack_num_level:
            return None
        # vLLM's `forward` clears it when it finishes.
        seen: torch.Tensor = self.deepstack_input_embeds[level]
        return seen[: inputs_embeds.shape[0]].clone()

    def _process_audio_input(self, audio_input: Any) -> tuple[torch.Tensor, ...]:
        """Return the embeddings [positions, hidden] of each window, in order."""
        lengths = audio_input["audio_feature_lengths"].tolist()
        pieces = audio_input["input_features"].split(lengths, dim=1)
        widths = [len(mask) for mask in audio_input["feature_attention_mask"]]
        made: dict[int, torch.Tensor] = {}
        for padded, indices in self._alike(widths):
            made |= zip(indices, self._encode([pieces[at] for at in indices], padded), strict=True)
        return tuple(made[at] for at in range(len(pieces)))

    def _alike(self, widths: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield each padded length, together with the indices of the windows that have this
        length.
        """
        longest = 2 * self.audio_tower.n_window
        padded = [min(width, longest) for width in widths]
        for size in sorted(set(padded)):
            yield size, [at for at, each in enumerate(padded) if each == size]

    def _encode(self, pieces: list[torch.Tensor], padded: int) -> tuple[torch.Tensor, ...]:
        """Encode windows [mel bins, frames]. Their chunks are padded to `padded` frames."""
        given = list(pieces)
        if max(piece.shape[1] for piece in given) < padded:
            given.append(given[0].new_zeros(given[0].shape[0], padded))
        lengths = torch.tensor([piece.shape[1] for piece in given])
        encoded = super()._process_audio_input(
            {"input_features": torch.cat(given, dim=1), "audio_feature_lengths": lengths}
        )
        embeddings: tuple[torch.Tensor, ...] = tuple(encoded[: len(pieces)])
        return embeddings
