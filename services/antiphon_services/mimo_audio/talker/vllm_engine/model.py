"""The layers of Qwen2 on vLLM.

The input can contain rows instead of tokens, and the last hidden states are returned to the stage.
vLLM has to sample a token for each position, so the logits are set to zero and the result is
ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import SupportsMultiModal
from vllm.model_executor.models.qwen2 import Qwen2Model
from vllm.model_executor.models.utils import AutoWeightsLoader, maybe_prefix
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import (
    BaseDummyInputsBuilder,
    BaseMultiModalProcessor,
    BaseProcessingInfo,
)
from vllm.sequence import IntermediateTensors

from antiphon_services.vllm.session import MODALITY, ROWS
from antiphon_services.vllm.tap import TapLayer

LAYERS = "model."
"""The prefix of the tensors that are loaded by this model."""


class RowInfo(BaseProcessingInfo):  # type: ignore[misc, unused-ignore]
    """Allows any number of row sequences, each of which can be as long as the context."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """The model has no limit."""
        return {MODALITY: None}

    def get_mm_max_tokens_per_item(
        self, seq_len: int, mm_counts: Mapping[str, int]
    ) -> Mapping[str, int]:
        """A row sequence can be as long as the context."""
        return {MODALITY: seq_len}


class NoDummyInputs(BaseDummyInputsBuilder[RowInfo]):  # type: ignore[type-arg, unused-ignore]
    """Disables profiling, because the rows are computed elsewhere."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        """Return an empty text."""
        return ""

    def get_dummy_mm_data(self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Any) -> Any:
        """Return no data."""
        return {}


class NoProcessor(BaseMultiModalProcessor[RowInfo]):  # type: ignore[type-arg, unused-ignore]
    """A processor that is not used, because the stage sends processed input.

    `antiphon_services.vllm.session` describes the format.
    """

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Any) -> Any:
        return {}

    def _get_prompt_updates(
        self, mm_items: Any, hf_processor_mm_kwargs: Any, out_mm_kwargs: Any
    ) -> Sequence[Any]:
        return ()


@MULTIMODAL_REGISTRY.register_processor(NoProcessor, info=RowInfo, dummy_inputs=NoDummyInputs)
class GroupedLayers(nn.Module, SupportsMultiModal):  # type: ignore[misc, unused-ignore]
    """The tensors below `model` in the checkpoint.

    The output of the final normalization is passed to the connector that returns it to the stage.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self._vocabulary: int = config.vocab_size
        mark: Any = self._mark_language_model
        with mark(vllm_config):
            self.model = Qwen2Model(
                vllm_config=vllm_config, prefix=maybe_prefix(prefix, LAYERS.rstrip("."))
            )
        self.antiphon_tap: Any = TapLayer(config.hidden_size, vllm_config.cache_config)

    def embed_multimodal(self, **given: Any) -> Sequence[torch.Tensor]:
        """Return the rows of each sequence, of shape [n, hidden], without changes."""
        rows = given.get(ROWS)
        return () if rows is None else tuple(rows)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **_others: object,
    ) -> torch.Tensor:
        """Return the last hidden states, of shape [tokens, hidden]."""
        layers: Any = self.model
        hidden: torch.Tensor = layers(input_ids, positions, intermediate_tensors, inputs_embeds)
        self.antiphon_tap(hidden.unsqueeze(1))
        return hidden

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return zeros of shape [tokens, vocabulary]."""
        return hidden_states.new_zeros(len(hidden_states), self._vocabulary)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the layers and the word embeddings and ignore all other tensors."""
        own = ((name, weight) for name, weight in weights if name.startswith(LAYERS))
        loaded: set[str] = AutoWeightsLoader(self).load_weights(own)
        return loaded
