"""One forward over new positions of many sequences, on Hugging Face's weights.

Equals the families' thinkers in transformers (5.19) for text and audio, for which
`get_rope_index` gives the plain positions 0, 1, 2, ... on all three axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from services.lm.attention import Span
from services.lm.decoder import Decoder
from services.lm.graphs import Bucketing
from services.lm.kv_cache import KVCache
from services.thinker.audio import AudioFeatures

Ids = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ThinkerFeed:
    """New ids of one sequence, from position `start` on.

    `audio` [k, hidden] is what stands at the k audio ids among them. `tapped` are
    offsets of the ids whose hidden row is wanted; the logits after the last are
    computed if `sampled`.
    """

    slot: int
    start: int
    ids: Ids
    tapped: Offsets
    sampled: bool
    audio: Tensor | None = None

    @property
    def span(self) -> Span:
        """Where the ids go."""
        return Span(self.slot, self.start, len(self.ids))


@dataclass(frozen=True, slots=True)
class Fed:
    """Logits [V] after the last id if they were wanted, and the tapped rows [n, hidden]."""

    logits: Tensor | None
    rows: Tensor


class ThinkerModel:
    """Runs Hugging Face's `module`, a thinker whose hidden state number `tapped_layer` is read.

    That number is as in `Decoder.append`.
    `bucketing` runs what can be a graph, in steps without prompt rows.
    """

    def __init__(
        self,
        module: Any,
        *,
        tapped_layer: int,
        slots: int,
        context_limit: int,
        bucketing: Bucketing | None = None,
    ) -> None:
        self.device: torch.device = module.device
        self._tapped_layer = tapped_layer
        self._audio_id: int = module.config.audio_token_id
        self._audio_tower = module.audio_tower
        self._words = module.model.embed_tokens
        self._head = module.lm_head
        with torch.inference_mode():
            self._decoder = Decoder(
                module.model,
                context_limit,
                batch_invariant=False,
                exact_norms=True,
                bucketing=bucketing,
                most_rows=slots,
            )
        self.cache = KVCache(self._decoder.shape, slots, context_limit, grows=True)

    def encode_audio(self, audio: AudioFeatures) -> Tensor:
        """The audio tower's output [positions, hidden] of all recordings.

        Mirrors `get_audio_features`.
        """
        mask = torch.from_numpy(audio.mask).to(self.device)
        features = torch.from_numpy(audio.features).to(self.device)
        frames = features.permute(0, 2, 1)[mask.bool()].permute(1, 0)
        encoded = self._audio_tower(frames, feature_lens=mask.sum(-1), return_dict=True)
        rows: Tensor = encoded.last_hidden_state
        return rows.to(self._words.weight.dtype)

    def forward(self, feeds: Sequence[ThinkerFeed]) -> list[Fed]:
        """Append every feed's ids to its sequence, all in one batch."""
        order = sorted(range(len(feeds)), key=lambda index: self._decoder.order(feeds[index].span))
        ordered = [feeds[index] for index in order]
        self.cache.reserve(max(each.span.end for each in feeds))
        plan = self._decoder.plan(self.cache, [each.span for each in ordered])
        tapped_index, sampled_index = _wanted(ordered)
        states, tapped = self._decoder.append(
            self._embed(ordered), plan, tapped_layer=self._tapped_layer
        )
        taken = tapped[torch.from_numpy(tapped_index).to(self.device)]
        logits = self._head(states[torch.from_numpy(sampled_index).to(self.device)])
        fed = dict(zip(order, _split(ordered, logits, taken), strict=True))
        return [fed[index] for index in range(len(feeds))]

    def _embed(self, feeds: Sequence[ThinkerFeed]) -> Tensor:
        """Word embeddings [n, hidden], with the audio rows at the audio ids."""
        ids = torch.from_numpy(np.concatenate([each.ids for each in feeds]))
        rows: Tensor = self._words(ids.to(self.device, torch.long))
        start = 0
        for feed in feeds:
            if feed.audio is not None and len(feed.audio):
                at = start + np.flatnonzero(feed.ids == self._audio_id)
                rows[torch.from_numpy(at).to(self.device)] = feed.audio
            start += len(feed.ids)
        return rows


def _wanted(feeds: Sequence[ThinkerFeed]) -> tuple[Offsets, Offsets]:
    """Rows of the batch to tap, and rows to compute logits of."""
    starts = np.cumsum([0, *(len(each.ids) for each in feeds)])
    tapped = [each.tapped + start for each, start in zip(feeds, starts[:-1], strict=True)]
    sampled = [end - 1 for each, end in zip(feeds, starts[1:], strict=True) if each.sampled]
    return np.concatenate(tapped), np.asarray(sampled, dtype=np.intp)


def _split(feeds: Sequence[ThinkerFeed], logits: Tensor, tapped: Tensor) -> list[Fed]:
    """Each feed's part of what was computed."""
    rows = iter(torch.split(tapped, [len(each.tapped) for each in feeds]))
    drawn = iter(logits)
    return [Fed(next(drawn) if each.sampled else None, next(rows)) for each in feeds]
