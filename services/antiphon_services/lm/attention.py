"""Attention over a flat batch whose rows belong to many sequences.

A sequence with several rows (a part of its prompt) gets a separate call. On a CPU, new short
prompts share a call, padded to the longest, if their lengths are within a power of two: there a
call costs more than its arithmetic. A batch-invariant plan does not share these.

Sequences with one row share calls if their lengths are within a power of two, so that a long
sequence does not make others pay for its length. A mask hides positions after a row's own. Adjacent
slots are read in place; others are gathered. On a CPU, where a gather costs more than a call, long
sequences get separate calls instead (measured: above 256 KB of keys and values per layer).

For each such row, a batch-invariant plan reads the positions up to the next power of two. Its
arithmetic, and so every digit, then depends on the row's position alone and not on the batch. Other
plans read up to the longest of the call. On a GPU that length is rounded up to a multiple of
`GPU_LENGTHS`, so that consecutive steps have the same shapes.

For the kernel of each call see `antiphon_services.lm.attention_calls`.
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

# Rows up to this length share a call whatever their lengths. A batch-invariant plan reads at least
# this much.
LEAST_SHARED = 256
LEAST_READ = 64
CPU_GATHER_BYTES = 256 * 1024
GPU_LENGTHS = 64

# New prompts share a call if they have up to this many positions, whatever their lengths, and up to
# this many bytes of keys and values each. Above, sharing saves less than 5 % (measured).
LEAST_FILLED = 32
CPU_FILLED_BYTES = 32 * 1024

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Span:
    """The next `count` positions of the sequence in `slot`, starting at `start`."""

    slot: int
    start: int
    count: int = 1

    @property
    def end(self) -> int:
        """The sequence's length including these positions."""
        return self.start + self.count


class AttentionPlan:
    """Which rows attend to which positions in one forward; the same for all layers.

    The batch has the spans' rows one after another, `count` in total, with `positions` int64 [n].
    `cache` must have room for all spans. Additional rows in a batch are padding: they get the last
    row's output and are not written to the cache. The step's data is copied to the device once,
    together with arrays of other components: `beside`, int64 or float64.
    """

    def __init__(
        self,
        cache: KVCache,
        spans: Sequence[Span],
        *,
        batch_invariant: bool,
        beside: Sequence[Numbers] = (),
    ) -> None:
        """Spans in the order of `span_order` share the most calls."""
        self._cache, self._invariant = cache, batch_invariant
        slots = [each.slot for each in spans for _ in range(each.count)]
        positions = [at for each in spans for at in range(each.start, each.end)]
        places = np.array(slots, np.int64), np.array(positions, np.int64)
        there = together_on_device((*places, *beside), cache.shape.device)
        self._slots, self.positions, *self.beside = there
        self.count = len(slots)
        self._calls = list(self._make_calls(spans))

    def split(self) -> tuple[AttentionPlan, AttentionPlan] | None:
        """Return plans for two consecutive forwards: rows up to the last multi-row span, and the
        rest.

        None if either is empty.
        """
        long = [call.rows.stop for call in self._calls if call.prompt]
        if not long or long[-1] == self.count:
            return None
        return self._part(0, long[-1]), self._part(long[-1], self.count)

    def _part(self, first: int, stop: int) -> AttentionPlan:
        """Return the plan of these rows. They share no call with others."""
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
        """Write the rows' keys and values, then attend; see `antiphon_services.lm.layer.Attend`."""
        self.remember(layer, memory)
        return self._mixed(layer, queries, memory)

    def remember(self, layer: int, memory: Tensor) -> None:
        """Write the rows' keys and values to the cache."""
        self._cache.layer(layer)[self._slots, self.positions] = memory[: self.count]

    def look(self, layer: int, queries: Tensor) -> Tensor:
        """Like `attend`, for rows whose keys and values another plan has written."""
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
        """Return one call for new prompts."""
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
        """Yield a call for each span of several rows."""
        masked = not flash_takes(self._cache.shape)
        for span in group:
            rows, slots = slice(row, row + span.count), slice(span.slot, span.slot + 1)
            mask = self._mask(rows, span.end) if span.start and masked else None
            from_start = span.start == 0
            yield Call(rows, slots, span.end, mask, prompt=True, from_start=from_start)
            row = rows.stop

    def _make_short(self, group: Sequence[Span], row: int) -> Iterator[Call]:
        """Yield one call for all spans of one row, or one each."""
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
        """Return a key equal for spans that may share a call; None for spans that share none."""
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
        """Largest size of a sequence's keys and values that are gathered to share a call, in
        bytes."""
        return CPU_GATHER_BYTES if self._cache.shape.device.type == "cpu" else sys.maxsize

    def _mask(self, rows: slice, length: int, *, of_each: bool = False) -> Tensor:
        """Return a mask [rows, length], or [rows, 1, 1, length] if `of_each` sequence.

        It is 0 up to a row's own position and -inf after it.
        """
        shape = self._cache.shape
        later = torch.arange(length, device=shape.device) > self.positions[rows, None]
        mask = additive_mask(later, shape.dtype)
        if not of_each:
            return mask
        # `unsqueeze` would give a size-one dimension a stride of `length`, which kernels reject.
        stride = mask.stride(0)
        return mask.as_strided((len(mask), 1, 1, length), (stride, stride, stride, 1))


@dataclass(frozen=True, slots=True)
class _Alike:
    """Key of spans of one row, or of new prompts (`begin`), by their length rounded up."""

    length: int
    begin: bool = False


def span_order(span: Span, *, batch_invariant: bool) -> tuple[int, int]:
    """Sort key that makes spans that may share a call adjacent, by slot.

    Spans of several rows come first, and new prompts first among these.
    """
    if span.count > 1:
        return (0 if span.start else -_power_of_two(span.count, LEAST_FILLED)), span.slot
    return _power_of_two(span.end, LEAST_READ if batch_invariant else LEAST_SHARED), span.slot


def _power_of_two(length: int, least: int) -> int:
    """Return the next power of two from `length`, at least `least`."""
    return max(1 << (length - 1).bit_length(), least)
