"""Assigns slots to sequences, and finds reusable content of ended sequences.

A slot is free, taken by a running segment, or kept: its segment has ended, and its keys and values
remain for a prompt with the same beginning until the slot is needed. The content of a position is a
number: the id, or a digest for other content (audio), so that equal ids over different media are
different content.

Engines without reuse, or with their own (`antiphon_services.lm.kept_parts`), only take and free.
Otherwise:

- A prompt that continues a kept sequence takes the slot over: one conversation, one slot. The
  prompt must share all of the kept prompt; of the kept reply, the part with equal ids is reused.
- A prompt that shares a shorter beginning copies it and leaves the kept sequence to its own
  conversation, if another slot is available.
- The least recently used kept sequence is evicted first.
- The last position of a prompt is never reused, since its logits are needed.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIN_REUSED = 16
"""Shortest prefix worth a copy. Every prompt shares the first ids of its template."""

Content = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Kept:
    """An ended sequence: the content of its positions, and how many of them are prompt."""

    content: Content
    prompt_length: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A slot for a prompt.

    Its first `reused` positions are present, after copying them from slot `source` if that is set.
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
        """Return the lowest free slot, since adjacent slots are read in place.

        Otherwise the least recently used kept one except `spared`; None if all are taken.
        """
        if self._free:
            return heapq.heappop(self._free)
        oldest = next((slot for slot in self._kept if slot != spared), None)
        if oldest is not None:
            del self._kept[oldest]
        return oldest

    @property
    def free_slots(self) -> frozenset[int]:
        """The free slots."""
        return frozenset(self._free)

    def take_this(self, slot: int) -> None:
        """Take a free slot."""
        self._free.remove(slot)
        heapq.heapify(self._free)

    def claim(self, content: Content) -> Claim | None:
        """Return a slot for a prompt of at least one position; None if all are taken."""
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
        """Keep the content of an ended segment for reuse."""
        self._kept[slot] = kept

    def free(self, slot: int) -> None:
        """Free the slot of an ended segment whose content is not reusable.

        It may be taken at once: device work already submitted for it precedes later work.
        """
        heapq.heappush(self._free, slot)

    def forget(self) -> None:
        """Free every kept slot."""
        for slot in self._kept:
            self.free(slot)
        self._kept.clear()


def shared_length(first: Content, second: Content) -> int:
    """Return the length of the common prefix of two contents."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length
