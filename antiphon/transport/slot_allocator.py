"""A buddy allocator for offsets. This module performs no I/O.

The size of each block is a power of two. A block can be split into two buddies, which are merged
again when both are free. This way, a slab can handle requests of 20 KB as well as 40 MB, and it
becomes a single block again when all slots have been returned. The most recently freed block is
reused first, because its pages are already populated and it is likely to be in the cache.
"""

from __future__ import annotations


class SlotAllocator:
    """Allocates offsets within `capacity` bytes, which must be `smallest` times a power of two."""

    def __init__(self, capacity: int, smallest: int) -> None:
        ratio = capacity // smallest
        if capacity != ratio * smallest or ratio < 1 or ratio & (ratio - 1):
            raise ValueError(f"{capacity} is not a power of two times {smallest}")
        self._smallest = smallest
        self._top = ratio.bit_length() - 1
        # The free offsets for each order. A dict is used because it preserves the order in which
        # they were freed.
        self._free: list[dict[int, None]] = [{} for _ in range(self._top + 1)]
        self._free[self._top][0] = None
        self._taken: dict[int, int] = {}

    def take(self, size: int) -> int | None:
        """Return the offset of a block with at least `size` bytes, or None if no such block is
        free.
        """
        wanted = max(0, (-(-size // self._smallest) - 1).bit_length())
        order = next((o for o in range(wanted, self._top + 1) if self._free[o]), None)
        if order is None:
            return None
        offset, _ = self._free[order].popitem()
        while order > wanted:
            order -= 1
            self._free[order][offset + (self._smallest << order)] = None
        self._taken[offset] = order
        return offset

    def free(self, offset: int) -> None:
        """Free a block. Raises `KeyError` if the block isn't in use."""
        order = self._taken.pop(offset)
        while order < self._top:
            buddy = offset ^ (self._smallest << order)
            if buddy not in self._free[order]:
                break
            del self._free[order][buddy]
            offset = min(offset, buddy)
            order += 1
        self._free[order][offset] = None

    @property
    def taken(self) -> int:
        """The number of blocks in use."""
        return len(self._taken)
