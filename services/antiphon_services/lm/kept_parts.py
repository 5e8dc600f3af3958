"""Parts of prompts that are still in the slots of ended segments.

Each turn's prompt contains the whole conversation before it. Since the partition of a prompt
depends only on its prefix, a part that is present after the same parts is exactly what would be
computed. A segment that gets the slot of its session's last segment skips the parts that they
share.

Slots with kept parts count as free and take no additional memory. A new session gets the lowest
slot without an expected return, else the slot of the session that has been away longest.
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
    """Return a digest of rows, or of what they are derived from, at positions from `start` on.

    `positions` int64 [n, 3] are their rotary positions; None if these are the rows' places.
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
    """By slot, the contiguous parts that it holds from its start, and the session that used it
    last.

    Each part has a start, an end and a name.
    """

    def __init__(self) -> None:
        self._parts: dict[int, dict[int, tuple[int, bytes]]] = {}
        self._last: dict[int, str] = {}
        self._returning: OrderedDict[int, None] = OrderedDict()  # least recently used first

    def choose(self, session: str, free: Collection[int]) -> int | None:
        """Return the free slot for a session; None if there is none."""
        own = next((at for at in free if self._last.get(at) == session), None)
        if own is not None:
            return own
        unowned = min((at for at in free if at not in self._returning), default=None)
        if unowned is not None:
            return unowned
        return next((at for at in self._returning if at in free), None)

    def own(self, slot: int, session: str, *, returns: bool) -> None:
        """Assign the slot to the session. `returns` means that a further segment is expected."""
        if self._last.get(slot) != session:
            self._parts.pop(slot, None)
            self._last[slot] = session
        self._returning.pop(slot, None)
        if returns:
            self._returning[slot] = None

    def holds(self, slot: int, start: int) -> bool:
        """Return whether the slot holds a part that starts at `start`."""
        return start in self._parts.get(slot, ())

    def matches(self, slot: int, start: int, stop: int, name: bytes) -> bool:
        """Return whether the slot holds exactly this part."""
        return self._parts.get(slot, {}).get(start) == (stop, name)

    def put(self, slot: int, start: int, stop: int, name: bytes | None) -> None:
        """Record a computed part, which replaces everything from `start` on. None names are not
        kept."""
        self.drop(slot, start)
        if name is not None and start == self.rows(slot):
            self._parts.setdefault(slot, {})[start] = stop, name

    def drop(self, slot: int, start: int) -> None:
        """Forget everything in the slot from `start` on."""
        parts = self._parts.get(slot, {})
        while self.rows(slot) > start:
            parts.popitem()

    def rows(self, slot: int) -> int:
        """Return how many rows of the slot, from the first, its parts cover."""
        return max((stop for stop, _ in self._parts.get(slot, {}).values()), default=0)
