"""The hidden rows of sequences, stored by slot and position like keys and values.

A talker needs the prompt's rows again in every turn of a conversation. For this reason, rows remain
in the slot of a completed sequence, are copied along with it, and are computed even if the current
turn isn't spoken. Storing them takes as much memory as the keys and values of one layer.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from antiphon.transport.device_edge import on_device
from antiphon_services.lm.kv_cache import CacheShape, KVCache
from antiphon_services.thinker.thinker_segment import Positions


class RowStore:
    """Rows [width] for `slots` sequences of up to `positions` positions each.

    Nothing is allocated until the first row is stored. This class must be used in inference mode.
    """

    def __init__(self, like: Tensor, width: int, slots: int, positions: int) -> None:
        """Create a store with the same dtype and device as `like`."""
        # Use a cache with a single layer. Its key and value are the two halves of a row.
        shape = CacheShape(1, 1, width // 2, 1.0, like.dtype, like.device)
        self._halves = KVCache(shape, slots, positions, grows=True)
        self._width = width

    def put(self, where: Tensor, end: int, rows: Tensor) -> None:
        """Store rows [n, width] at `where` (int64 [2, n]), which contains slots and positions. All
        positions must be below `end`.
        """
        self._halves.reserve(end)
        self._halves.layer(0)[where[0], where[1]] = rows.view(len(rows), 2, -1)

    def take(self, slot: int, positions: Positions) -> Tensor:
        """Return the rows [n, width] at positions [n] of a slot. They must have been stored
        before.
        """
        memory = self._halves.layer(0)
        where = on_device(positions.astype(np.int64), memory.device)
        return memory[slot, where].view(len(positions), self._width)

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copy the rows at the first `positions` positions of one slot to another slot."""
        self._halves.copy(source, target, positions)


def no_positions() -> Positions:
    """Return an empty array of positions."""
    return np.empty(0, dtype=np.intp)
