"""Attention for a flat batch that contains the rows of many sequences.

A sequence that contributes several rows (a part of its prompt) is computed in its own call. The
exception is new short prompts on a CPU. If their lengths are within a power of two of each other,
they are padded to the longest one and share a call, because the overhead of a call exceeds the cost
of its arithmetic. Batch-invariant plans never do this.

Sequences that contribute a single row share a call if their lengths are within a power of two of
each other, so that a short sequence doesn't pay for a long one. A mask hides the positions after
each row's own position. Adjacent slots are read in place, while other slots have to be gathered. On
a CPU, gathering a long sequence costs more than an extra call, so sequences with more than 256 KB
of keys and values per layer are computed separately. This threshold was measured.

For each of these single rows, a batch-invariant plan reads the positions up to the next power of
two. The arithmetic, and therefore the exact result, then depends only on the row's position and not
on the batch. Other plans read as many positions as the longest sequence in the call has. On a GPU,
this length is rounded up to a multiple of `GPU_LENGTHS` to keep the shapes the same from one step
to the next.

`antiphon_services.lm.attention_calls` describes which kernel is used for each call.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from antiphon.transport.device_edge import together_on_device
from antiphon_services.lm.attention_calls import Beginnings, Call, additive_mask, flash_takes
from antiphon_services.lm.kv_cache import KVCache

# Rows with up to this many positions share a call, regardless of how much their lengths differ. A
# batch-invariant plan reads at least this many positions.
LEAST_SHARED = 256
LEAST_READ = 64
CPU_GATHER_BYTES = 256 * 1024
GPU_LENGTHS = 64

# New prompts share a call if they have at most this many positions and at most this many bytes of
# keys and values, regardless of how much their lengths differ. For longer prompts, sharing saves
# less than 5 % (measured).
LEAST_FILLED = 32
CPU_FILLED_BYTES = 32 * 1024

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Span:
    """The next `count` positions of the sequence in `slot`, which begin at `start`."""

    slot: int
    start: int
    count: int = 1

    @property
    def end(self) -> int:
        """The length of the sequence including these positions."""
        return self.start + self.count


class AttentionPlan:
    """Determines which rows attend to which positions in one forward pass. All layers use the same
    plan.

    The batch starts with the rows of all spans, in order. `count` is the number of these rows, and
    `positions` (int64 [n]) contains their positions. Any further rows in the batch are padding:
    they receive the output of the last row and are not written to the cache. `cache` must have
    enough space for all spans.

    The step's data is copied to the device in a single transfer. Use `beside` to include arrays of
    other components (int64 or float64) in this transfer.
    """

    def __init__(
        self,
        cache: KVCache,
        spans: Sequence[Span],
        *,
        batch_invariant: bool,
        beside: Sequence[Numbers] = (),
    ) -> None:
        """Create a plan. Sort the spans by `span_order` to let as many of them as possible share
        calls.
        """
        self._cache, self._invariant = cache, batch_invariant
        slots = [each.slot for each in spans for _ in range(each.count)]
        positions = [at for each in spans for at in range(each.start, each.end)]
        places = np.array(slots, np.int64), np.array(positions, np.int64)
        there = together_on_device((*places, *beside), cache.shape.device)
        self._slots, self.positions, *self.beside = there
        self.count = len(slots)
        self._calls = list(self._make_calls(spans))

    def split(self) -> tuple[AttentionPlan, AttentionPlan] | None:
        """Return plans for two consecutive forward passes, or None if one of them would be empty.

        The first pass contains all rows up to the last span that has several rows, and the second
        pass contains the others.
        """
        long = [call.rows.stop for call in self._calls if call.prompt]
        if not long or long[-1] == self.count:
            return None
        return self._part(0, long[-1]), self._part(long[-1], self.count)

    def _part(self, first: int, stop: int) -> AttentionPlan:
        """Return a plan for these rows only, so that they don't share a call with other rows."""
        part = copy(self)
        part._slots, part.positions = self._slots[first:stop], self.positions[first:stop]
        part.count = stop - first
        part._calls = [
            replace(call, rows=slice(call.rows.start - first, call.rows.stop - first))
            for call in self._calls
            if first <= call.rows.start < stop
        ]
        return part

    def attend(self, layer: int, queries: Tensor, memory: Tensor) -> Tensor:
        """Write the rows' keys and values to the cache and then compute attention. Implements
        `antiphon_services.lm.layer.Attend`.
        """
        self.remember(layer, memory)
        return self._mixed(layer, queries, memory)

    def remember(self, layer: int, memory: Tensor) -> None:
        """Write the rows' keys and values to the cache."""
        self._cache.layer(layer)[self._slots, self.positions] = memory[: self.count]

    def look(self, layer: int, queries: Tensor) -> Tensor:
        """Like `attend`, but for rows whose keys and values have already been written by another
        plan.
        """
        return self._mixed(layer, queries, queries)

    def _mixed(self, layer: int, queries: Tensor, memory: Tensor) -> Tensor:
        mixed = [self._mix(call, layer, queries, memory) for call in self._calls]
        if self.count < len(queries):
            mixed.append(mixed[-1][-1:].expand(len(queries) - self.count, -1, -1))
        return torch.cat(mixed) if len(mixed) > 1 else mixed[0]

    def _mix(self, call: Call | Beginnings, layer: int, queries: Tensor, memory: Tensor) -> Tensor:
        asked, shape = queries[call.rows], self._cache.shape
        if isinstance(call, Beginnings):
            return call.mix(asked, memory[call.rows], shape)
        return call.mix(asked, self._cache.layer(layer), shape)

    def _make_calls(self, spans: Sequence[Span]) -> Iterator[Call | Beginnings]:
        row = 0
        for alike, grouped in itertools.groupby(spans, self._alike):
            group = list(grouped)
            if alike is None or (alike.begin and len(group) == 1):
                yield from self._make_long(group, row)
            elif alike.begin:
                yield self._make_beginnings(group, row)
            else:
                yield from self._make_short(group, row)
            row += sum(each.count for each in group)

    def _make_beginnings(self, group: Sequence[Span], row: int) -> Beginnings:
        """Return a single call for several new prompts."""
        counts = np.array([each.count for each in group])
        length = int(counts.max())
        rows = slice(row, row + int(counts.sum()))
        if (counts == length).all():
            return Beginnings(rows, len(group), length)
        ends = counts.cumsum()[:, None]
        filled = np.minimum((ends - counts[:, None]) + np.arange(length), ends - 1)
        own = np.flatnonzero(np.arange(length) < counts[:, None])
        return Beginnings(
            rows, len(group), length, torch.from_numpy(filled.ravel()), torch.from_numpy(own)
        )

    def _make_long(self, group: Sequence[Span], row: int) -> Iterator[Call]:
        """Yield a call for each span that has several rows."""
        masked = not flash_takes(self._cache.shape)
        for span in group:
            rows, slots = slice(row, row + span.count), slice(span.slot, span.slot + 1)
            mask = self._mask(rows, span.end) if span.start and masked else None
            from_start = span.start == 0
            yield Call(rows, slots, span.end, mask, prompt=True, from_start=from_start)
            row = rows.stop

    def _make_short(self, group: Sequence[Span], row: int) -> Iterator[Call]:
        """Yield one call for all single-row spans, or a separate call for each of them."""
        length = max(each.end for each in group)
        if self._invariant:
            length = min(_power_of_two(length, LEAST_READ), self._cache.capacity)
        elif len(group) > 1 and self._cache.shape.device.type != "cpu":
            length = min(-(-length // GPU_LENGTHS) * GPU_LENGTHS, self._cache.capacity)
        taken = [each.slot for each in group]
        slots: slice | Tensor = slice(taken[0], taken[0] + len(taken))
        if taken != list(range(taken[0], taken[0] + len(taken))):
            if length * self._cache.shape.position_bytes > self._most_gathered:
                for index, span in enumerate(group, row):
                    yield from self._make_short([span], index)
                return
            slots = self._slots[row : row + len(group)]
        rows, mask = slice(row, row + len(group)), None
        if self._invariant or len(group) > 1:
            mask = self._mask(rows, length, of_each=True)
        yield Call(rows, slots, length, mask)

    def _alike(self, span: Span) -> _Alike | None:
        """Return a key for grouping spans, or None if the span needs its own call. Spans with equal
        keys may share a call.
        """
        if span.count == 1:
            least = LEAST_READ if self._invariant else LEAST_SHARED
            return _Alike(_power_of_two(span.end, least))
        shape = self._cache.shape
        is_short = span.count * shape.position_bytes <= CPU_FILLED_BYTES
        if span.start or self._invariant or shape.device.type != "cpu" or not is_short:
            return None
        return _Alike(_power_of_two(span.count, LEAST_FILLED), begin=True)

    @property
    def _most_gathered(self) -> int:
        """If a sequence's keys and values take up more than this many bytes, the sequence isn't
        gathered into a shared call.
        """
        return CPU_GATHER_BYTES if self._cache.shape.device.type == "cpu" else sys.maxsize

    def _mask(self, rows: slice, length: int, *, of_each: bool = False) -> Tensor:
        """Return a mask of shape [rows, length], or [rows, 1, 1, length] if `of_each` is true.

        The mask is 0 up to the row's own position and -inf after it.
        """
        shape = self._cache.shape
        later = torch.arange(length, device=shape.device) > self.positions[rows, None]
        mask = additive_mask(later, shape.dtype)
        if not of_each:
            return mask
        # `unsqueeze` would give a dimension of size 1 a stride of `length`, which kernels reject.
        stride = mask.stride(0)
        return mask.as_strided((len(mask), 1, 1, length), (stride, stride, stride, 1))


@dataclass(frozen=True, slots=True)
class _Alike:
    """The key of spans that have a single row, or of new prompts (`begin`). It contains the length
    rounded up.
    """

    length: int
    begin: bool = False


def span_order(span: Span, *, batch_invariant: bool) -> tuple[int, int]:
    """Return a sort key that makes spans adjacent if they may share a call. Within such a group,
    spans are ordered by slot.

    Spans with several rows come first. Among these, new prompts precede all others.
    """
    if span.count > 1:
        return (0 if span.start else -_power_of_two(span.count, LEAST_FILLED)), span.slot
    return _power_of_two(span.end, LEAST_READ if batch_invariant else LEAST_SHARED), span.slot


def _power_of_two(length: int, least: int) -> int:
    """Return the smallest power of two that is at least `length` and at least `least`."""
    return max(1 << (length - 1).bit_length(), least)
