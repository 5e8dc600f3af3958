"""Attention of a flat batch whose rows belong to many sequences.

A sequence that brings several rows (a part of its prompt) has a call of its own.
Those that bring one row share calls: their keys are gathered and padded to the
longest of the call, and a mask hides the padding. So that a long sequence does not
make others pay for its length, only lengths within a power of two share a call. On a
CPU a long sequence goes alone, where it needs no copy of its keys: there the copy
costs more than the call (measured: above 256 KB of keys and values per layer).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from services.thinker.key_values import KeyValues, KeyValueShape

SMALLEST_BUCKET_BITS = 8
CPU_GATHER_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Span:
    """The next `count` positions of the sequence in `slot`, from `start` on."""

    slot: int
    start: int
    count: int

    @property
    def end(self) -> int:
        """The sequence's length with these positions."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class _Alone:
    """Rows of one sequence, the last ones before `end`."""

    rows: slice
    slot: int
    end: int


@dataclass(frozen=True, slots=True)
class _Shared:
    """One row each of several sequences; `mask` [n, 1, 1, length] is True where seen."""

    rows: slice
    slots: Tensor
    length: int
    mask: Tensor


class AttentionPlan:
    """Who attends to what in one forward; the same for all layers.

    The batch has the spans' rows one after another. `positions` int64 [n] are those
    of its rows. There must be room in `key_values` for all spans.
    """

    def __init__(self, spans: Sequence[Span], key_values: KeyValues) -> None:
        """`spans` must be in the order of `span_order`."""
        self._key_values = key_values
        self._device = key_values.shape.device
        positions = np.concatenate([np.arange(each.start, each.end) for each in spans])
        slots = np.repeat([each.slot for each in spans], [each.count for each in spans])
        self.positions = torch.from_numpy(positions).to(self._device)
        self._written = torch.from_numpy(slots).to(self._device), self.positions
        self._calls = list(self._make_calls(spans))

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write the new keys and values [n, key heads, d]; what the rows saw, [n, heads * d]."""
        all_keys, all_values = self._key_values.layer(layer)
        all_keys.index_put_(self._written, keys)
        all_values.index_put_(self._written, values)
        seen = [_attend(call, queries, all_keys, all_values) for call in self._calls]
        return torch.cat(seen) if len(seen) > 1 else seen[0]

    def _make_calls(self, spans: Sequence[Span]) -> Iterator[_Alone | _Shared]:
        """Spans that may share a call stand side by side."""
        row = 0
        shape = self._key_values.shape
        for _, grouped in itertools.groupby(spans, span_order):
            group = list(grouped)
            gathered = max(each.end for each in group) * shape.position_bytes
            share = group[0].count == 1 and len(group) > 1 and gathered <= _most_gathered(shape)
            if share:
                yield self._share(group, row)
                row += len(group)
                continue
            for span in group:
                yield _Alone(slice(row, row + span.count), span.slot, span.end)
                row += span.count

    def _share(self, group: Sequence[Span], row: int) -> _Shared:
        ends = torch.tensor([each.end for each in group], device=self._device)
        length = max(each.end for each in group)
        mask = torch.arange(length, device=self._device) < ends[:, None]
        slots = torch.tensor([each.slot for each in group], device=self._device)
        return _Shared(slice(row, row + len(group)), slots, length, mask[:, None, None])


def span_order(span: Span) -> tuple[int, int]:
    """Sort by this: equal for spans that may share a call, which then stand side by side."""
    if span.count > 1:
        return 1, span.slot
    return 0, max(span.end.bit_length(), SMALLEST_BUCKET_BITS)


def _attend(
    call: _Alone | _Shared, queries: Tensor, all_keys: Tensor, all_values: Tensor
) -> Tensor:
    """What the call's rows saw, [rows, heads * d]."""
    rows = queries[call.rows]
    if isinstance(call, _Shared):
        keys = all_keys[:, : call.length].index_select(0, call.slots)
        values = all_values[:, : call.length].index_select(0, call.slots)
        return _attend_one_row_each(rows, keys, values, call.mask)
    keys = all_keys[call.slot, None, : call.end]
    values = all_values[call.slot, None, : call.end]
    if len(rows) == 1:
        return _attend_one_row_each(rows, keys, values, None)
    seen = scaled_dot_product_attention(
        rows.transpose(0, 1)[None],
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=causal_lower_right(len(rows), call.end),
        enable_gqa=True,
    )
    return seen[0].transpose(0, 1).flatten(1)


def _attend_one_row_each(rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Rows [n, heads, d] over keys and values [n, length, key heads, d].

    The query heads that share a key head stand where several queries would: so their
    keys are read once.
    """
    queries = rows.view(len(rows), keys.shape[2], -1, rows.shape[2])
    seen = scaled_dot_product_attention(
        queries, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask
    )
    return seen.flatten(1)


def _most_gathered(shape: KeyValueShape) -> int:
    """How many bytes of one sequence's keys and values may be copied to share a call."""
    return CPU_GATHER_BYTES if shape.device.type == "cpu" else sys.maxsize
