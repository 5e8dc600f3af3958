"""Keeps track of prompt parts that remain in a slot after their segment has ended.

Each turn's prompt contains the whole conversation so far. The parts within a prefix depend only on
the prefix. If a slot already contains a part with the same name after the same preceding parts,
computing the part again would therefore give an identical result. When a segment is assigned the
slot of its session's previous segment, it skips the parts that both prompts have in common.

A slot with kept parts counts as free and doesn't use additional memory. A new session is assigned
the lowest slot to which no session is expected to return. If there is no such slot, it is assigned
the slot whose session has been inactive for the longest time.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from antiphon.values.chunk import Tensor

NAME_BYTES = 16
NO_CUTS = np.empty(0, np.intp)


def part_name(start: int, positions: npt.NDArray[np.int64] | None, *rows: Tensor) -> bytes:
    """Return a digest of rows that begin at `start`, or of the data from which the rows are
    derived.

    `positions` (int64 [n, 3]) contains their rotary positions. It is None if the rotary positions
    are the same as the row numbers.
    """
    name = hashlib.blake2b(digest_size=NAME_BYTES)
    if positions is not None:
        places = np.arange(start, start + len(positions))[:, None]
        rows = (*rows, positions) if (positions != places).any() else rows
    for each in rows:
        name.update(f"{each.dtype} {each.shape} ".encode())
        name.update(np.ascontiguousarray(each).view(np.uint8).data)
    return name.digest()


class KeptParts:
    """Records the contiguous parts at the beginning of each slot, and the session that last used
    the slot.

    Each part has a start, an end and a name.
    """

    def __init__(self) -> None:
        self._parts: dict[int, dict[int, tuple[int, bytes]]] = {}
        self._last: dict[int, str] = {}
        # Ordered from the least to the most recently used.
        self._returning: OrderedDict[int, None] = OrderedDict()

    def choose(self, session: str, free: Collection[int]) -> int | None:
        """Return the free slot that a session should use, or None if no slot is free."""
        own = next((at for at in free if self._last.get(at) == session), None)
        if own is not None:
            return own
        unowned = min((at for at in free if at not in self._returning), default=None)
        if unowned is not None:
            return unowned
        return next((at for at in self._returning if at in free), None)

    def own(self, slot: int, session: str, *, returns: bool) -> None:
        """Assign the slot to the session. Set `returns` if another segment is expected later."""
        if self._last.get(slot) != session:
            self._parts.pop(slot, None)
            self._last[slot] = session
        self._returning.pop(slot, None)
        if returns:
            self._returning[slot] = None

    def holds(self, slot: int, start: int) -> bool:
        """Return whether the slot contains a part that starts at `start`."""
        return start in self._parts.get(slot, ())

    def matches(self, slot: int, start: int, stop: int, name: bytes) -> bool:
        """Return whether the slot contains exactly this part."""
        return self._parts.get(slot, {}).get(start) == (stop, name)

    def put(self, slot: int, start: int, stop: int, name: bytes | None) -> None:
        """Record a part that was computed. It replaces everything from `start` onwards. If its name
        is None, the part is not kept.
        """
        self.drop(slot, start)
        if name is not None and start == self.rows(slot):
            self._parts.setdefault(slot, {})[start] = stop, name

    def drop(self, slot: int, start: int) -> None:
        """Discard all parts of the slot from `start` onwards."""
        parts = self._parts.get(slot, {})
        while self.rows(slot) > start:
            parts.popitem()

    def rows(self, slot: int) -> int:
        """Return the number of rows at the beginning of the slot that are covered by its parts."""
        return max((stop for stop, _ in self._parts.get(slot, {}).values()), default=0)
