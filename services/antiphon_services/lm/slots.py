"""Assigns slots to sequences and finds content from completed sequences that can be reused.

A slot is either free, in use by a running segment, or kept. A kept slot belongs to a segment that
has ended. Its keys and values remain available for a prompt with the same beginning until the slot
is needed for something else. The content of each position is represented by a number, which is the
ID or, for audio and other media, a digest. Equal placeholder IDs for different media therefore
count as different content.

Some engines don't reuse content or have their own implementation
(`antiphon_services.lm.kept_parts`). They only take and free slots. For other engines, the following
rules apply:

- If a prompt continues a kept sequence, it takes over the slot, so that a conversation uses a
  single slot. The prompt must start with the entire kept prompt. The kept reply is reused up to the
  first ID that doesn't match.
- If a prompt shares only a shorter beginning, this beginning is copied, provided that another slot
  is available. The kept sequence remains available for its own conversation.
- The least recently used sequence is evicted first.
- The last position of a prompt is never reused, because its logits are needed.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIN_REUSED = 16
"""The minimum length of a prefix that is worth copying. All prompts have the first IDs of the chat
template in common.
"""

Content = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Kept:
    """The content of a completed sequence's positions, and the number of positions that belong to
    the prompt.
    """

    content: Content
    prompt_length: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A slot for a prompt.

    The first `reused` positions don't have to be computed. If `source` is set, they must first be
    copied from that slot.
    """

    slot: int
    reused: int = 0
    source: int | None = None


class Slots:
    """An engine's slots."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))  # This list is a heap.
        self._kept: dict[int, Kept] = {}  # Ordered from the least to the most recently used one.

    def take(self, spared: int | None = None) -> int | None:
        """Return the lowest free slot, because adjacent slots can be read in place.

        If no slot is free, return the least recently used kept slot other than `spared`, or None if
        all slots are in use.
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
        """Keep an ended segment's content so that it can be reused."""
        self._kept[slot] = kept

    def free(self, slot: int) -> None:
        """Free the slot of an ended segment whose content can't be reused.

        The slot can be taken again immediately, because work that has already been submitted to the
        device runs before later work.
        """
        heapq.heappush(self._free, slot)

    def forget(self) -> None:
        """Free all kept slots."""
        for slot in self._kept:
            self.free(slot)
        self._kept.clear()


def shared_length(first: Content, second: Content) -> int:
    """Return the length of the longest common prefix of two contents."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length
