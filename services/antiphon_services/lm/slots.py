"""Assigns slots to sequences, and finds content of ended sequences that can be reused.

A slot is free, in use by a running segment, or kept. A slot is kept if its segment has ended and
its keys and values remain for a prompt with the same beginning, until the slot is needed. The
content of a position is represented by a number. It is the ID, or a digest of other content
(audio). Therefore equal IDs for different media count as different content.

Engines that do not reuse content, or that have their own implementation
(`antiphon_services.lm.kept_parts`), only take and free slots. For all other engines, the following
rules apply:

- If a prompt continues a kept sequence, it takes over the slot, so that a conversation uses one
  slot. The prompt must contain the whole kept prompt. Of the kept reply, the part with equal IDs is
  reused.
- If a prompt shares only a shorter beginning, this beginning is copied, provided that another slot
  is available. The kept sequence remains available for its own conversation.
- The kept sequence that was used least recently is evicted first.
- The last position of a prompt is never reused, because its logits are needed.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIN_REUSED = 16
"""The minimum length of a prefix that is worth copying. Every prompt shares the first IDs of its
template.
"""

Content = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Kept:
    """A sequence that has ended, with the content of its positions and the number of positions that
    belong to the prompt.
    """

    content: Content
    prompt_length: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A slot for a prompt.

    Its first `reused` positions are already present. If `source` is set, they must be copied from
    that slot first.
    """

    slot: int
    reused: int = 0
    source: int | None = None


class Slots:
    """The slots of one engine."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))  # This list is a heap.
        self._kept: dict[int, Kept] = {}  # Ordered from the least to the most recently used one.

    def take(self, spared: int | None = None) -> int | None:
        """Return the lowest free slot, because adjacent slots can be read in place.

        If no slot is free, the least recently used kept slot is returned, but never `spared`. The
        result is None if all slots are in use.
        """
        if self._free:
            return heapq.heappop(self._free)
        oldest = next((slot for slot in self._kept if slot != spared), None)
        if oldest is not None:
            del self._kept[oldest]
        return oldest

    @property
    def free_slots(self) -> frozenset[int]:
        """The slots that are free."""
        return frozenset(self._free)

    def take_this(self, slot: int) -> None:
        """Take a specific free slot."""
        self._free.remove(slot)
        heapq.heapify(self._free)

    def claim(self, content: Content) -> Claim | None:
        """Return a slot for a prompt of at least one position, or None if all slots are in use."""
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
        self._kept[best] = kept  # This makes it the most recently used one.
        return Claim(slot, reused, best)

    def keep(self, slot: int, kept: Kept) -> None:
        """Keep the content of a segment that has ended, so that it can be reused."""
        self._kept[slot] = kept

    def free(self, slot: int) -> None:
        """Free the slot of a segment that has ended and whose content cannot be reused.

        The slot may be taken immediately, because device work that was already submitted for it
        runs before later work.
        """
        heapq.heappush(self._free, slot)

    def forget(self) -> None:
        """Free all kept slots."""
        for slot in self._kept:
            self.free(slot)
        self._kept.clear()


def shared_length(first: Content, second: Content) -> int:
    """Return the length of the common prefix of two contents."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length
