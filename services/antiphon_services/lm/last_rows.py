"""Computes the last layer only for the rows whose states are needed.

The next ID is sampled from the last row of a prompt. For all other rows, the last layer only has to
write keys and values, because nothing would use their attention output or MLP output.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from antiphon_services.lm.attention import AttentionPlan, Span, span_order
from antiphon_services.lm.kv_cache import KVCache
from antiphon_services.lm.layer import Layer
from antiphon_services.lm.rotary import Rotation


class LastRows:
    """The last rows of selected `spans` in a batch. The batch contains all rows of these spans."""

    def __init__(self, cache: KVCache, spans: Sequence[Span], asked: Sequence[bool]) -> None:
        """Create the plan. It includes the last row of each span that is marked in `asked`."""
        ends = accumulate(each.count for each in spans)
        rows = [
            (Span(span.slot, span.end - 1), end - 1)
            for span, end, is_asked in zip(spans, ends, asked, strict=True)
            if is_asked
        ]
        order = partial(span_order, batch_invariant=False)
        by_order = sorted(range(len(rows)), key=lambda index: order(rows[index][0]))
        self._rows = torch.tensor([rows[index][1] for index in by_order], dtype=torch.int64)
        self._as_asked = torch.tensor(by_order, dtype=torch.int64).argsort()
        alone = [rows[index][0] for index in by_order]
        self._plan = AttentionPlan(cache, alone, batch_invariant=False) if alone else None

    def through(
        self, number: int, layer: Layer, rows: Tensor, rotation: Rotation, batch: AttentionPlan
    ) -> Tensor:
        """Return the outputs [k, hidden] of the last layer, in the order of the spans. `number` is
        the number of this layer.

        `rows` [n, hidden] are all rows of the batch, and `batch` is the plan that writes their keys
        and values. The kind of the last rows is 0, as described in `Decoder.append_last`.
        """
        queries, memory = layer.split(layer.enter(rows, rotation))
        batch.remember(number, memory)
        if self._plan is None:
            return rows[:0]
        mixed = self._plan.look(number, queries.index_select(0, self._rows))
        made = layer.leave(rows.index_select(0, self._rows), mixed)
        return made.index_select(0, self._as_asked)
