"""Prefill and decoding of one sequence on Hugging Face's thinker modules.

Mirrors `Qwen3OmniMoeThinkerForConditionalGeneration.generate` (5.19) for text and
audio. The module's own `forward` is not used: it keeps `rope_deltas` on the module,
where two sequences would overwrite each other's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import DynamicCache, Qwen3OmniMoeThinkerForConditionalGeneration

from services.thinker.prompt import PreparedPrompt


@dataclass(frozen=True, slots=True)
class Sequence:
    """What is kept of a prefilled prompt: keys and values, and how far positions run ahead."""

    cache: DynamicCache
    rope_delta: Tensor


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A started sequence, the first logits [V], and the tapped rows [n, hidden]."""

    sequence: Sequence
    logits: Tensor
    rows: Tensor


class ThinkerModel:
    """Runs a thinker whose hidden state number `tapped_layer` is read (0: embeddings)."""

    def __init__(
        self, thinker: Qwen3OmniMoeThinkerForConditionalGeneration, *, tapped_layer: int
    ) -> None:
        self.device: torch.device = thinker.device
        self._thinker: Any = thinker  # its annotations are narrower than what it takes
        self._tapped_layer = tapped_layer

    @torch.inference_mode()
    def prefill(self, prompt: PreparedPrompt, row_positions: npt.NDArray[np.intp]) -> Prefilled:
        """Run a whole prompt; the rows are those of `row_positions`."""
        ids = torch.from_numpy(prompt.ids).to(self.device, torch.long)[None]
        embeddings = self._embed(ids, prompt)
        positions, rope_delta = self._positions(ids, prompt)
        sequence = Sequence(DynamicCache(config=self._thinker.config.text_config), rope_delta)
        hidden, tapped = self._run_tapped(embeddings, positions, sequence.cache)
        rows = tapped[0, torch.from_numpy(row_positions).to(self.device)]
        return Prefilled(sequence, self._thinker.lm_head(hidden[0, -1]), rows)

    @torch.inference_mode()
    def decode(self, sequence: Sequence, id_: int) -> Tensor:
        """Append one id and return the logits [V] that follow it."""
        embedding = self._thinker.model.embed_tokens(torch.tensor([[id_]], device=self.device))
        text = torch.full((1, 1, 1), sequence.cache.get_seq_length(), device=self.device)
        positions = torch.cat([text, (text + sequence.rope_delta).expand(3, -1, -1)])
        hidden = self._run(embedding, positions, sequence.cache)
        logits: Tensor = self._thinker.lm_head(hidden[0, -1])
        return logits

    def _embed(self, ids: Tensor, prompt: PreparedPrompt) -> Tensor:
        """Embeddings [1, P, hidden] with the audio tower's output at the audio ids."""
        embeddings: Tensor = self._thinker.model.embed_tokens(ids)
        if prompt.audio is None:
            return embeddings
        audio = self._thinker.get_audio_features(
            torch.from_numpy(prompt.audio.features).to(self.device),
            torch.from_numpy(prompt.audio.mask).to(self.device),
            return_dict=True,
        ).last_hidden_state.to(embeddings.dtype)
        is_audio = (ids == self._thinker.config.audio_token_id)[..., None]
        return embeddings.masked_scatter(is_audio, audio)

    def _positions(self, ids: Tensor, prompt: PreparedPrompt) -> tuple[Tensor, Tensor]:
        """Text, time, height and width positions [4, 1, P], and the delta [1, 1]."""
        mask = torch.from_numpy(prompt.audio.mask) if prompt.audio else None
        spatial, rope_delta = self._thinker.get_rope_index(
            ids,
            attention_mask=torch.ones_like(ids),
            audio_seqlens=None if mask is None else mask.sum(-1).to(self.device),
        )
        text = torch.arange(ids.shape[1], device=self.device).expand(1, 1, -1)
        return torch.cat([text, spatial]), rope_delta

    def _run_tapped(
        self, embeddings: Tensor, positions: Tensor, cache: DynamicCache
    ) -> tuple[Tensor, Tensor]:
        """Normed output and tapped hidden state, both [1, P, hidden].

        Numbered as Hugging Face's `hidden_states`: 0 is the layers' input, n the
        output of layer n, and the last one the normed output.
        """
        layers = self._thinker.model.layers
        if self._tapped_layer in (0, len(layers)):
            hidden = self._run(embeddings, positions, cache)
            return hidden, hidden if self._tapped_layer else embeddings
        tapped: list[Tensor] = []

        def keep(_module: torch.nn.Module, _arguments: object, output: Tensor) -> None:
            tapped.append(output)

        hook = layers[self._tapped_layer - 1].register_forward_hook(keep)
        try:
            return self._run(embeddings, positions, cache), tapped[0]
        finally:
            hook.remove()

    def _run(self, embeddings: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        """The text model's normed output [1, n, hidden]; extends the cache."""
        hidden: Tensor = self._thinker.model(
            inputs_embeds=embeddings,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return hidden
