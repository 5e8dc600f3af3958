"""Hidden rows of sequences, stored by slot and position like keys and values.

A talker needs rows of the prompt, again in every turn of a conversation. So they stay in the slot
of an ended sequence, are copied with it, and are computed whether or not this turn is spoken. They
cost as much as one layer's keys and values, if there are any.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from antiphon.transport.device_edge import on_device
from antiphon_services.lm.kv_cache import CacheShape, KVCache
from antiphon_services.thinker.thinker_segment import Positions


class RowStore:
    """Rows [width] of at most `positions` positions for each of `slots` sequences.

    Allocates nothing before the first row. Use it in inference mode.
    """

    def __init__(self, like: Tensor, width: int, slots: int, positions: int) -> None:
        """Use the dtype and device of `like`."""
        # A cache of one layer; its key and value are the halves of a row.
        shape = CacheShape(1, 1, width // 2, 1.0, like.dtype, like.device)
        self._halves = KVCache(shape, slots, positions, grows=True)
        self._width = width

    def put(self, where: Tensor, end: int, rows: Tensor) -> None:
        """Store rows [n, width] at `where` int64 [2, n], slots and positions below `end`."""
        self._halves.reserve(end)
        self._halves.layer(0)[where[0], where[1]] = rows.view(len(rows), 2, -1)

    def take(self, slot: int, positions: Positions) -> Tensor:
        """Return rows [n, width] at positions [n] of a slot, which were put before."""
        memory = self._halves.layer(0)
        where = on_device(positions.astype(np.int64), memory.device)
        return memory[slot, where].view(len(positions), self._width)

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copy the rows at the first positions of a slot to another."""
        self._halves.copy(source, target, positions)


def no_positions() -> Positions:
    """Return an empty array of positions."""
    return np.empty(0, dtype=np.intp)
