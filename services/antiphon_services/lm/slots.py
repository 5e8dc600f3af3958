"""Which sequence has which slot, and what of ended sequences is still there to reuse.

A slot is free, taken by a running segment, or kept: its segment has ended and its
keys and values stay, until the slot is needed, for a prompt that begins alike. What a
position holds is a number (`content`): the id, or where something else stands (sound) a
digest of it, so that equal ids over different things are different content.

Who reuses nothing, or chooses by itself (`antiphon_services.lm.kept_parts`), only takes and frees.
Among those who do:

- A prompt that goes on from a kept sequence (it shares all of its prompt, and as much
  of its reply as is spelled with the same ids) takes the slot over: one conversation,
  one slot.
- A prompt that shares a shorter beginning copies it and leaves the kept sequence to
  its own conversation, if there is any other slot.
- The least recently used kept sequence makes room.
- The last position of a prompt is never reused: its logits are needed.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIN_REUSED = 16
"""Shorter beginnings are not worth a copy: every prompt shares its template's first ids."""

Content = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Kept:
    """An ended sequence: what its positions hold, and how many of them are prompt."""

    content: Content
    prompt_length: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A slot for a prompt.

    The first `reused` positions are there already, once they were copied from slot
    `source` if there is one.
    """

    slot: int
    reused: int = 0
    source: int | None = None


class Slots:
    """The slots of one engine."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))  # a heap
        self._kept: dict[int, Kept] = {}  # least recently used first

    def take(self, spared: int | None = None) -> int | None:
        """The lowest free slot, as slots side by side are read in place; or the least recently
        used kept one but `spared`. None when all are taken."""
        if self._free:
            return heapq.heappop(self._free)
        oldest = next((slot for slot in self._kept if slot != spared), None)
        if oldest is not None:
            del self._kept[oldest]
        return oldest

    @property
    def free_slots(self) -> frozenset[int]:
        """Those that are free."""
        return frozenset(self._free)

    def take_this(self, slot: int) -> None:
        """Take a slot that is free."""
        self._free.remove(slot)
        heapq.heapify(self._free)

    def claim(self, content: Content) -> Claim | None:
        """A slot for a prompt of at least one position; None when all are taken."""
        shared = {slot: shared_length(content, kept.content) for slot, kept in self._kept.items()}
        best = max(shared, key=lambda slot: shared[slot], default=None)
        reused = min(shared[best], len(content) - 1) if best is not None else 0
        if best is None or reused < MIN_REUSED:
            slot = self.take()
            return None if slot is None else Claim(slot)
        continues = shared[best] >= self._kept[best].prompt_length
        slot = None if continues else self.take(best)
        kept = self._kept.pop(best)
        if slot is None:
            return Claim(best, reused)
        self._kept[best] = kept  # the most recently used from now on
        return Claim(slot, reused, best)

    def keep(self, slot: int, kept: Kept) -> None:
        """The slot's segment has ended; what is in it may be reused."""
        self._kept[slot] = kept

    def free(self, slot: int) -> None:
        """The slot's segment has ended; what is in it is worth nothing.

        It may be taken at once: what the device has yet to do there comes before what it
        is asked from now on.
        """
        heapq.heappush(self._free, slot)

    def forget(self) -> None:
        """Make every kept slot free."""
        for slot in self._kept:
            self.free(slot)
        self._kept.clear()


def shared_length(first: Content, second: Content) -> int:
    """How many positions two contents have in common from the start."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length
