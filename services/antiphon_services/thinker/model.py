"""Performs a forward pass over new positions of many sequences, using Hugging Face's weights.

The results are equal to those of the families' thinkers in transformers 5.19, except that images
don't have deepstack features. For a prompt that contains only text and audio, the rotary positions
are the same as the positions in the slot. Otherwise the prompt specifies them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from antiphon.pipelines.media_ids import MediaIds, is_media
from antiphon.transport.device_edge import on_device
from antiphon_services.lm.attention import Span
from antiphon_services.lm.decoder import Decoder
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.kv_cache import KVCache
from antiphon_services.lm.memory import SlotMemory
from antiphon_services.thinker.audio import AudioFeatures
from antiphon_services.thinker.patches import VisualPatches
from antiphon_services.thinker.rows import RowStore
from antiphon_services.thinker.towers import TowerPlan, there

Of = TypeVar("Of")
Ids = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ThinkerFeed:
    """The new IDs of one sequence, beginning at position `start`.

    `media` [k, hidden] contains the rows for the k media placeholders among the IDs. `tapped`
    contains the offsets of the IDs whose rows are kept. If `sampled` is true, the logits after the
    last ID are computed. `turned` (int64 [n, 3]) contains the rotary positions. If it is None,
    `shift` is added to the positions in the slot instead.
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
        """The span of these IDs in the slot."""
        return Span(self.slot, self.start, len(self.ids))


@dataclass(frozen=True, slots=True)
class Fed:
    """The kept rows [n, hidden] and, if they were requested, the logits [V] after the last ID."""

    logits: Tensor | None
    rows: Tensor


@dataclass(frozen=True, slots=True)
class _StepNumbers(Generic[Of]):
    """The numbers that the device needs for a step, either as arrays or as tensors on the device.

    `ids` has the shape [n]. Index arrays select the rows with media, the rows whose hidden states
    are kept (`tapped`), and the rows whose logits are needed (`sampled`). For the kept rows,
    `places` [2, k] contains slots and positions, and `words` [k] indicates which of them are words.
    `kinds` contains the result of `row_kinds` up to the last row that isn't a word. The rotary
    positions [n] or [n, 3] are only included if they differ from the positions in the slots.
    """

    ids: Of
    media: Of
    tapped: Of
    sampled: Of
    places: Of
    words: Of
    kinds: Of
    turned: Of | None = None

    def __iter__(self) -> Iterator[Of | None]:
        beside = (self.ids, self.media, self.tapped, self.sampled, self.places, self.words)
        return iter((*beside, self.kinds, self.turned))


class ThinkerModel:
    """Runs Hugging Face's thinker `module`. Rows for the talker are stored in `row_store`.

    A row is the hidden state at `tapped_layer`, which is counted as in `Decoder.append`. If
    `with_words` is true, the embedding of the word is added to it, except at media positions.
    `special` contains the placeholder IDs, and `towers` is the plan for the encoders. If
    `routes_media` is true, the layers have separate routers for media. If `bucketing` is given,
    parts of the computation run as graphs, which use `kernels` if they are given. Raises
    `InvalidArgument` if a GPU doesn't have enough memory for all slots at full length.
    """

    def __init__(
        self,
        module: Any,
        *,
        special: MediaIds,
        towers: TowerPlan,
        tapped_layer: int,
        with_words: bool = False,
        routes_media: bool = False,
        slots: int,
        context_limit: int,
        bucketing: Bucketing | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self.device: torch.device = module.device
        self._tapped_layer = tapped_layer
        self._with_words = with_words
        self._routes_media = routes_media
        self._special = special
        self._towers = towers
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
                kernels=kernels,
            )
        shape, width = self._decoder.shape, int(self._words.weight.shape[1])
        row_bytes = width * self._words.weight.element_size()
        self.memory = SlotMemory(
            slots, context_limit, shape.layers * shape.position_bytes + row_bytes, self.device
        )
        """The memory that the slots need at full length, including the rows for the talker."""
        self.memory.require_room(grows=True)
        self.cache = KVCache(shape, slots, context_limit, grows=True)
        self.vocabulary = len(self._words.weight)
        self.row_store = RowStore(self._words.weight, width, slots, context_limit)

    def encode(self, piece: AudioFeatures | VisualPatches) -> Tensor:
        """Return a tower's output [positions, hidden], either for all recordings or for a single
        image or video.
        """
        if isinstance(piece, AudioFeatures):
            return self._encode_audio(piece)
        patches = on_device(piece.patches, self.device).to(self._vision_tower.dtype)
        grid = torch.tensor([piece.grid])
        planned = there(self._towers.vision(self._vision_tower, grid), self.device)
        rows: Tensor = self._vision_tower(
            patches, grid_thw=grid, return_dict=True, **planned
        ).pooler_output
        return rows.to(self._words.weight.dtype)

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copy the keys, values and rows at the first `positions` positions of one slot to another
        slot.
        """
        self.cache.copy(source, target, positions)
        self.row_store.copy(source, target, positions)

    def _encode_audio(self, audio: AudioFeatures) -> Tensor:
        """Encode recordings. The result is the same as with `get_audio_features`."""
        features, frames = torch.from_numpy(audio.features), torch.from_numpy(audio.mask.sum(-1))
        encoded = [
            self._audio_tower(return_dict=True, **there(each, self.device)).last_hidden_state
            for each in self._towers.audio(self._audio_tower, features, frames)
        ]
        rows: Tensor = torch.cat(encoded) if len(encoded) > 1 else encoded[0]
        return rows[len(rows) - sum(audio.positions) :].to(self._words.weight.dtype)

    def forward(self, feeds: Sequence[ThinkerFeed]) -> list[Fed]:
        """Append the IDs of every feed to its sequence, in a single batch."""
        order = sorted(range(len(feeds)), key=lambda index: self._decoder.order(feeds[index].span))
        ordered = [feeds[index] for index in order]
        self.cache.reserve(max(each.span.end for each in feeds))
        beside = [each for each in self._numbers(ordered) if each is not None]
        spans = [each.span for each in ordered]
        plan = self._decoder.plan(self.cache, spans, beside)
        there = _StepNumbers(*plan.beside)
        embedded = self._embed(ordered, there)
        tapped_layer = self._tapped_layer
        kinds = there.kinds if len(there.kinds) else None
        last = self._decoder.last_rows(
            self.cache, spans, [each.sampled for each in ordered], tapped_layer=tapped_layer
        )
        if last is None:
            states, tapped = self._decoder.append(
                embedded, plan, there.turned, tapped_layer=tapped_layer, kinds=kinds
            )
            states = states[there.sampled]
        else:
            states, tapped = self._decoder.append_last(
                embedded, plan, there.turned, last, tapped_layer=tapped_layer, kinds=kinds
            )
        taken = self._keep(ordered, there, tapped, embedded)
        logits = self._head(states)
        fed = dict(zip(order, _split(ordered, logits, taken), strict=True))
        return [fed[index] for index in range(len(feeds))]

    def _numbers(self, feeds: Sequence[ThinkerFeed]) -> _StepNumbers[npt.NDArray[np.int64]]:
        """Return the numbers that the device needs for a step."""
        starts = np.cumsum([0, *(len(each.ids) for each in feeds)])[:-1]
        heard = [
            start + np.flatnonzero(is_media(each.ids, self._special))
            for start, each in zip(starts, feeds, strict=True)
            if each.media is not None and len(each.media)
        ]
        places = [
            np.repeat([each.slot for each in feeds], [len(each.tapped) for each in feeds]),
            np.concatenate([each.start + each.tapped for each in feeds]),
        ]
        words = np.empty(0, np.int64)
        if self._with_words:
            kept = np.concatenate([each.ids[each.tapped] for each in feeds])
            words = (~is_media(kept, self._special)).astype(np.int64)
        kinds = np.empty(0, np.int64)
        if heard and self._routes_media:
            of_all = np.concatenate([row_kinds(each, self._special) for each in feeds])
            kinds = np.trim_zeros(of_all, "b")
        return _StepNumbers(
            _whole([each.ids for each in feeds]),
            _whole(heard),
            _whole([start + each.tapped for start, each in zip(starts, feeds, strict=True)]),
            np.asarray(
                [
                    start + len(each.ids) - 1
                    for start, each in zip(starts, feeds, strict=True)
                    if each.sampled
                ],
                np.int64,
            ),
            np.stack(places).astype(np.int64),
            words,
            kinds,
            _turned(feeds),
        )

    def _embed(self, feeds: Sequence[ThinkerFeed], there: _StepNumbers[Tensor]) -> Tensor:
        """Return the word embeddings [n, hidden], in which placeholders have been replaced by media
        rows.
        """
        rows: Tensor = self._words(there.ids)
        media = [each.media for each in feeds if each.media is not None and len(each.media)]
        if media:
            rows[there.media] = torch.cat(media) if len(media) > 1 else media[0]
        return rows

    def _keep(
        self,
        feeds: Sequence[ThinkerFeed],
        there: _StepNumbers[Tensor],
        tapped: Tensor,
        embedded: Tensor,
    ) -> Tensor:
        """Store the rows that `feeds` request and return them [n, hidden]."""
        rows = tapped[there.tapped]
        if not len(rows):
            return rows
        if self._with_words:
            rows = rows + embedded[there.tapped] * there.words[:, None]
        self.row_store.put(there.places, max(each.span.end for each in feeds), rows)
        return rows


WORD_KIND, VISION_KIND, AUDIO_KIND = range(3)


def row_kinds(feed: ThinkerFeed, special: MediaIds) -> npt.NDArray[np.int64]:
    """Return the kind of each row [n], which is also the index of its router.

    In a feed without media, every row is a word, even if the reply contains a placeholder ID.
    """
    kinds = np.full(len(feed.ids), WORD_KIND, np.int64)
    if feed.media is not None and len(feed.media):
        kinds[(feed.ids == special.image) | (feed.ids == special.video)] = VISION_KIND
        kinds[feed.ids == special.audio] = AUDIO_KIND
    return kinds


def _turned(feeds: Sequence[ThinkerFeed]) -> npt.NDArray[np.int64] | None:
    """Return the rotary positions [n] or [n, 3], or None if they are the same as the positions in
    the slots.
    """
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


def _whole(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    """Concatenate the parts."""
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)


def _split(feeds: Sequence[ThinkerFeed], logits: Tensor, tapped: Tensor) -> list[Fed]:
    """Split the results into one part for each feed."""
    rows = iter(torch.split(tapped, [len(each.tapped) for each in feeds]))
    drawn = iter(logits)
    return [Fed(next(drawn) if each.sampled else None, next(rows)) for each in feeds]
