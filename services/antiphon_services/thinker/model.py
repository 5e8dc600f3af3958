"""One forward over new positions of many sequences, with Hugging Face's weights.

Equals the families' thinkers in transformers (5.19), except for the deepstack features of images,
which are omitted. With only text and audio, rotary positions are those in the slot. With images and
videos, the prompt specifies them.
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
    """New ids of one sequence, from position `start` on.

    `media` [k, hidden] are the rows at the k media placeholders among them. `tapped` are offsets of
    ids whose row is kept. The logits after the last id are computed if `sampled`. `turned` int64
    [n, 3] are the rotary positions; None means those in the slot plus `shift`.
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
        """The span of the ids in the slot."""
        return Span(self.slot, self.start, len(self.ids))


@dataclass(frozen=True, slots=True)
class Fed:
    """Logits [V] after the last id if requested, and the kept rows [n, hidden]."""

    logits: Tensor | None
    rows: Tensor


@dataclass(frozen=True, slots=True)
class _StepNumbers(Generic[Of]):
    """Numbers of a step for the device, as arrays or as tensors on it.

    `ids` [n]; the rows with media, with kept hidden states (`tapped`), or with logits (`sampled`);
    for the kept ones `places` [2, k], slots and positions, and whether they are `words` [k]; rotary
    positions [n] or [n, 3] if they differ from the slots'.
    """

    ids: Of
    media: Of
    tapped: Of
    sampled: Of
    places: Of
    words: Of
    turned: Of | None = None

    def __iter__(self) -> Iterator[Of | None]:
        return iter(
            (self.ids, self.media, self.tapped, self.sampled, self.places, self.words, self.turned)
        )


class ThinkerModel:
    """Runs Hugging Face's `module`, a thinker; the talker's rows stay in `row_store`.

    A row is hidden state number `tapped_layer`, counted as in `Decoder.append`. `with_words`, it is
    the sum with the word's embedding, which is zero at media positions. `special` are the
    placeholder ids, `towers` the plan of the encoders. `bucketing` runs parts as graphs, with
    `kernels` if given. Raises `InvalidArgument` if a GPU cannot hold all slots at full length.
    """

    def __init__(
        self,
        module: Any,
        *,
        special: MediaIds,
        towers: TowerPlan,
        tapped_layer: int,
        with_words: bool = False,
        slots: int,
        context_limit: int,
        bucketing: Bucketing | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self.device: torch.device = module.device
        self._tapped_layer = tapped_layer
        self._with_words = with_words
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
        """Of slots that are at their longest, with the talker's rows."""
        self.memory.require_room(grows=True)
        self.cache = KVCache(shape, slots, context_limit, grows=True)
        self.vocabulary = len(self._words.weight)
        self.row_store = RowStore(self._words.weight, width, slots, context_limit)

    def encode(self, piece: AudioFeatures | VisualPatches) -> Tensor:
        """Return a tower's output [positions, hidden] for all recordings, or for an image or
        video."""
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
        """Copy the first positions of a slot to another: keys, values and rows."""
        self.cache.copy(source, target, positions)
        self.row_store.copy(source, target, positions)

    def _encode_audio(self, audio: AudioFeatures) -> Tensor:
        """Mirrors `get_audio_features`."""
        features, frames = torch.from_numpy(audio.features), torch.from_numpy(audio.mask.sum(-1))
        encoded = [
            self._audio_tower(return_dict=True, **there(each, self.device)).last_hidden_state
            for each in self._towers.audio(self._audio_tower, features, frames)
        ]
        rows: Tensor = torch.cat(encoded) if len(encoded) > 1 else encoded[0]
        return rows[len(rows) - sum(audio.positions) :].to(self._words.weight.dtype)

    def forward(self, feeds: Sequence[ThinkerFeed]) -> list[Fed]:
        """Append every feed's ids to its sequence in one batch."""
        order = sorted(range(len(feeds)), key=lambda index: self._decoder.order(feeds[index].span))
        ordered = [feeds[index] for index in order]
        self.cache.reserve(max(each.span.end for each in feeds))
        beside = [each for each in self._numbers(ordered) if each is not None]
        spans = [each.span for each in ordered]
        plan = self._decoder.plan(self.cache, spans, beside)
        there = _StepNumbers(*plan.beside)
        embedded = self._embed(ordered, there)
        tapped_layer = self._tapped_layer
        last = self._decoder.last_rows(
            self.cache, spans, [each.sampled for each in ordered], tapped_layer=tapped_layer
        )
        if last is None:
            states, tapped = self._decoder.append(
                embedded, plan, there.turned, tapped_layer=tapped_layer
            )
            states = states[there.sampled]
        else:
            states, tapped = self._decoder.append_last(
                embedded, plan, there.turned, last, tapped_layer=tapped_layer
            )
        taken = self._keep(ordered, there, tapped, embedded)
        logits = self._head(states)
        fed = dict(zip(order, _split(ordered, logits, taken), strict=True))
        return [fed[index] for index in range(len(feeds))]

    def _numbers(self, feeds: Sequence[ThinkerFeed]) -> _StepNumbers[npt.NDArray[np.int64]]:
        """Return the numbers of a step for the device."""
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
            _turned(feeds),
        )

    def _embed(self, feeds: Sequence[ThinkerFeed], there: _StepNumbers[Tensor]) -> Tensor:
        """Return word embeddings [n, hidden], with media rows at their placeholders."""
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
        """Store and return the rows that `feeds` keep; [n, hidden]."""
        rows = tapped[there.tapped]
        if not len(rows):
            return rows
        if self._with_words:
            rows = rows + embedded[there.tapped] * there.words[:, None]
        self.row_store.put(there.places, max(each.span.end for each in feeds), rows)
        return rows


def _turned(feeds: Sequence[ThinkerFeed]) -> npt.NDArray[np.int64] | None:
    """Return rotary positions [n] or [n, 3]; None if they are those in the slots."""
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
    """Return each feed's part of the results."""
    rows = iter(torch.split(tapped, [len(each.tapped) for each in feeds]))
    drawn = iter(logits)
    return [Fed(next(drawn) if each.sampled else None, next(rows)) for each in feeds]
