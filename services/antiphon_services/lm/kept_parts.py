"""Parts of prompts that are still in slots whose segments have ended.

Each turn of a conversation has all before it in its prompt. How a prompt is cut up is decided by
what it begins with alone, so a part that is there already, behind the same parts, is what would be
computed: a segment that gets the slot of its session's last one goes on behind the parts that they
share.

Slots that hold parts are free all the same, and take no memory that they would not take empty.
Whoever needs a slot gets one that no session is known to come back to, the lowest first, else that
of the session that has been away for longest.
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
    """The same for the same rows, or what they are made of, from `start` on, and for these alone.

    `positions` int64 [n, 3] are those that turn them; None where they are the rows' places.
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
    """By slot, the parts that it holds side by side from its start on, each by where it begins and
    ends and its name; and the session that had it last."""

    def __init__(self) -> None:
        self._parts: dict[int, dict[int, tuple[int, bytes]]] = {}
        self._last: dict[int, str] = {}
        self._returning: OrderedDict[int, None] = OrderedDict()  # least recently used first

    def choose(self, session: str, free: Collection[int]) -> int | None:
        """Which free slot a session gets; None if there is none."""
        own = next((at for at in free if self._last.get(at) == session), None)
        if own is not None:
            return own
        nobodys = min((at for at in free if at not in self._returning), default=None)
        if nobodys is not None:
            return nobodys
        return next((at for at in self._returning if at in free), None)

    def own(self, slot: int, session: str, *, returns: bool) -> None:
        """The slot is the session's now; it `returns` if another segment of it is expected."""
        if self._last.get(slot) != session:
            self._parts.pop(slot, None)
            self._last[slot] = session
        self._returning.pop(slot, None)
        if returns:
            self._returning[slot] = None

    def holds(self, slot: int, start: int) -> bool:
        """Whether the slot holds a part from `start` on."""
        return start in self._parts.get(slot, ())

    def matches(self, slot: int, start: int, stop: int, name: bytes) -> bool:
        """Whether the slot holds just this part from `start` on."""
        return self._parts.get(slot, {}).get(start) == (stop, name)

    def put(self, slot: int, start: int, stop: int, name: bytes | None) -> None:
        """The part is computed: what was there, and behind it, is gone. One without a name will
        not be asked for."""
        self.drop(slot, start)
        if name is not None and start == self.rows(slot):
            self._parts.setdefault(slot, {})[start] = stop, name

    def drop(self, slot: int, start: int) -> None:
        """What is in the slot from this position on is gone."""
        parts = self._parts.get(slot, {})
        while self.rows(slot) > start:
            parts.popitem()

    def rows(self, slot: int) -> int:
        """How many rows of the slot, from the first, are in parts that it holds."""
        return max((stop for stop, _ in self._parts.get(slot, {}).values()), default=0)
