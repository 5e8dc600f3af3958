"""One forward over new positions of many sequences, on Hugging Face's weights.

Equals the families' thinkers in transformers (5.19), but for the deepstack features of images,
which are left out here. The positions that turn keys and queries are those in the slot where
there is only text and audio; with images and videos the prompt says them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from antiphon.transport.device_edge import on_device
from services.lm.attention import Span
from services.lm.decoder import Decoder
from services.lm.graphs import Bucketing
from services.lm.kv_cache import KVCache
from services.thinker.audio import AudioFeatures
from services.thinker.patches import VisualPatches
from services.thinker.prompt import MediaIds, is_media
from services.thinker.rows import RowStore

Ids = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ThinkerFeed:
    """New ids of one sequence, from position `start` on.

    `media` [k, hidden] is what stands at the k ids among them that are heard or seen. `tapped`
    are offsets of the ids whose row is kept; the logits after the last are computed if `sampled`.
    `turned` int64 [n, 3] are the positions in rotary attention; where there are none, they are
    those in the slot plus `shift`.
    """

    slot: int
    start: int
    ids: Ids
    tapped: Offsets
    sampled: bool
    media: Tensor | None = None
    turned: npt.NDArray[np.int64] | None = None
    shift: int = 0

    @property
    def span(self) -> Span:
        """Where the ids go."""
        return Span(self.slot, self.start, len(self.ids))


@dataclass(frozen=True, slots=True)
class Fed:
    """Logits [V] after the last id if they were wanted, and the rows [n, hidden] that were kept."""

    logits: Tensor | None
    rows: Tensor


class ThinkerModel:
    """Runs Hugging Face's `module`, a thinker; the talker's rows stay in `row_store`.

    A row is hidden state number `tapped_layer`, as `Decoder.append` counts, or, `with_words`, the
    sum of it and the word's embedding, which is zero where something is heard or seen. `special`
    are the ids that stand for that.
    `bucketing` runs what can be a graph, in steps without prompt rows.
    """

    def __init__(
        self,
        module: Any,
        *,
        special: MediaIds,
        tapped_layer: int,
        with_words: bool = False,
        slots: int,
        context_limit: int,
        bucketing: Bucketing | None = None,
    ) -> None:
        self.device: torch.device = module.device
        self._tapped_layer = tapped_layer
        self._with_words = with_words
        self._special = special
        self._audio_tower = module.audio_tower
        self._vision_tower = module.visual
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
        width: int = self._words.weight.shape[1]
        self.row_store = RowStore(self._words.weight, width, slots, context_limit)

    def encode(self, piece: AudioFeatures | VisualPatches) -> Tensor:
        """A tower's output [positions, hidden] of all recordings, or of an image or video."""
        if isinstance(piece, AudioFeatures):
            return self._encode_audio(piece)
        patches = torch.from_numpy(piece.patches).to(self.device, self._vision_tower.dtype)
        grid = torch.tensor([piece.grid], device=self.device)
        rows: Tensor = self._vision_tower(patches, grid_thw=grid, return_dict=True).pooler_output
        return rows.to(self._words.weight.dtype)

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copy the first positions of a slot to another: keys, values and rows."""
        self.cache.copy(source, target, positions)
        self.row_store.copy(source, target, positions)

    def _encode_audio(self, audio: AudioFeatures) -> Tensor:
        """Mirrors `get_audio_features`."""
        features = torch.from_numpy(audio.features).to(self.device)
        lengths = torch.from_numpy(audio.mask).sum(-1).to(self.device)
        encoded = self._audio_tower(features, feature_lens=lengths, return_dict=True)
        rows: Tensor = encoded.last_hidden_state[audio.company :]
        return rows.to(self._words.weight.dtype)

    def forward(self, feeds: Sequence[ThinkerFeed]) -> list[Fed]:
        """Append every feed's ids to its sequence, all in one batch."""
        order = sorted(range(len(feeds)), key=lambda index: self._decoder.order(feeds[index].span))
        ordered = [feeds[index] for index in order]
        self.cache.reserve(max(each.span.end for each in feeds))
        plan = self._decoder.plan(self.cache, [each.span for each in ordered])
        tapped_index, sampled_index = _wanted(ordered)
        embedded = self._embed(ordered)
        turned = _turned(ordered)
        states, tapped = self._decoder.append(
            embedded,
            plan,
            None if turned is None else on_device(turned, self.device),
            tapped_layer=self._tapped_layer,
        )
        taken = self._keep(ordered, tapped_index, tapped, embedded)
        logits = self._head(states[torch.from_numpy(sampled_index).to(self.device)])
        fed = dict(zip(order, _split(ordered, logits, taken), strict=True))
        return [fed[index] for index in range(len(feeds))]

    def _embed(self, feeds: Sequence[ThinkerFeed]) -> Tensor:
        """Word embeddings [n, hidden], and at other ids what is heard or seen."""
        ids = torch.from_numpy(np.concatenate([each.ids for each in feeds]))
        rows: Tensor = self._words(ids.to(self.device, torch.long))
        start = 0
        for feed in feeds:
            if feed.media is not None and len(feed.media):
                at = start + np.flatnonzero(is_media(feed.ids, self._special))
                rows[torch.from_numpy(at).to(self.device)] = feed.media
            start += len(feed.ids)
        return rows

    def _keep(
        self, feeds: Sequence[ThinkerFeed], index: Offsets, tapped: Tensor, embedded: Tensor
    ) -> Tensor:
        """Keep the rows at this index of the batch, of all `feeds`; [n, hidden]."""
        where = on_device(index, self.device)
        rows = tapped[where]
        if not len(index):
            return rows
        if self._with_words:
            ids = np.concatenate([each.ids[each.tapped] for each in feeds])
            words = on_device(~is_media(ids, self._special), self.device)
            rows = rows + embedded[where] * words[:, None]
        slots = np.repeat([each.slot for each in feeds], [len(each.tapped) for each in feeds])
        self.row_store.put(
            slots, np.concatenate([each.start + each.tapped for each in feeds]), rows
        )
        return rows


def _turned(feeds: Sequence[ThinkerFeed]) -> npt.NDArray[np.int64] | None:
    """Positions [n] or [n, 3] in rotary attention; None where they are those in the slots."""
    if all(each.turned is None and not each.shift for each in feeds):
        return None
    plain = [
        np.arange(each.start, each.span.end) + each.shift if each.turned is None else each.turned
        for each in feeds
    ]
    if all(each.ndim == 1 for each in plain):
        return np.concatenate(plain)
    return np.concatenate(
        [np.repeat(each[:, None], 3, axis=1) if each.ndim == 1 else each for each in plain]
    )


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
