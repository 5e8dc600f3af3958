"""Hidden rows of sequences, kept by slot and position beside their keys and values.

Whoever speaks a reply needs rows of its prompt, in every turn of a conversation again. So they
stay with an ended sequence in its slot, are copied with it, and are made whether or not this
turn is spoken: they cost one layer's share of the keys and values, where there are any at all.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from antiphon.transport.device_edge import on_device
from antiphon_services.lm.kv_cache import CacheShape, KVCache
from antiphon_services.thinker.thinker_segment import Positions


class RowStore:
    """Rows [width] of `positions` positions at most for each of `slots` sequences.

    Takes no memory before the first row comes. Must run in inference mode.
    """

    def __init__(self, like: Tensor, width: int, slots: int, positions: int) -> None:
        """Of the dtype and on the device of `like`."""
        # A cache of one layer, whose key and value are the halves of a row.
        shape = CacheShape(1, 1, width // 2, 1.0, like.dtype, like.device)
        self._halves = KVCache(shape, slots, positions, grows=True)
        self._width = width

    def put(self, where: Tensor, end: int, rows: Tensor) -> None:
        """Keep rows [n, width], one or more, at `where` int64 [2, n], slots and positions, of
        which all are below `end`."""
        self._halves.reserve(end)
        self._halves.layer(0)[where[0], where[1]] = rows.view(len(rows), 2, -1)

    def take(self, slot: int, positions: Positions) -> Tensor:
        """Rows [n, width] at positions [n] of a slot, all of which were put."""
        memory = self._halves.layer(0)
        where = on_device(positions.astype(np.int64), memory.device)
        return memory[slot, where].view(len(positions), self._width)

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copy what is at the first positions of a slot to another."""
        self._halves.copy(source, target, positions)


def no_positions() -> Positions:
    """None at all."""
    return np.empty(0, dtype=np.intp)
