"""Keeps track of parts of prompts that are still in the slots of segments that have ended.

The prompt of each turn contains the whole preceding conversation. The division of a prompt into
parts depends only on its prefix. Therefore, if a part is present after the same preceding parts, it
is identical to what would be computed. If a segment gets the slot of the previous segment of its
session, it skips the parts that they have in common.

Slots that contain kept parts count as free and do not use additional memory. A new session gets the
lowest slot to which no session is expected to return. If there is none, it gets the slot of the
session that has not used its slot for the longest time.
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
    """Return a digest of rows, or of the data that they are derived from, at the positions from
    `start` onwards.

    `positions` (int64 [n, 3]) are their rotary positions. It is None if these are equal to the
    places of the rows.
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
    """For each slot, the contiguous parts that it contains from its start, and the session that
    used it last.

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
        """Assign the slot to the session. `returns` means that another segment is expected
        later.
        """
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
        """Record a part that was computed. It replaces everything from `start` onwards. A part
        whose name is None is not kept.
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
        """Return the number of rows of the slot, counted from the first one, that its parts
        cover.
        """
        return max((stop for stop, _ in self._parts.get(slot, {}).values()), default=0)
