"""Keys and values of many sequences: one slot each, with a common capacity.

Layout per layer: [slots, capacity, 2 * key heads, head_dim]. New rows of a whole batch are written
at once, and a sequence's positions are contiguous and read in place. There are no pages.

A fixed cache allocates all of its memory on construction and never moves, so a slot always has
room. A growing cache doubles all slots together: its size is its longest sequence times its slots,
and reaches the limit only if a sequence does.

On a CPU the memory is a mapping that the system fills on write, so only positions that sequences
have reached take memory. A fixed cache larger than the machine's memory is rejected.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.errors import FailedPrecondition
from antiphon_services.lm.memory import SlotMemory

FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The shape of a stack of layers, for its cache."""

    layers: int
    key_heads: int
    head_dim: int
    scale: float
    dtype: torch.dtype
    device: torch.device

    @property
    def position_bytes(self) -> int:
        """Bytes of one position of one slot in one layer."""
        return 2 * self.key_heads * self.head_dim * self.dtype.itemsize


class KVCache:
    """Keys and values of at most `positions` for each of `slots` sequences.

    With `grows`, nothing is allocated before the first `reserve`; otherwise everything is allocated
    now, or `InvalidArgument` is raised. Use it in inference mode.
    """

    def __init__(
        self, shape: CacheShape, slots: int, positions: int, *, grows: bool = False
    ) -> None:
        self.shape, self.slots, self.positions = shape, slots, positions
        self.capacity = 0
        self.memory = SlotMemory(
            slots, positions, shape.layers * shape.position_bytes, shape.device
        )
        """Of a cache that has all positions."""
        self._layers: list[Tensor] = []
        if not grows:
            self.memory.require_room()
            self._allocate(positions)

    def reserve(self, positions: int) -> None:
        """Grow every slot to at least `positions`."""
        if positions > self.capacity:
            wanted = max(positions, 2 * self.capacity, FIRST_CAPACITY)
            self._allocate(max(positions, min(wanted, self.positions)))

    @property
    def bytes(self) -> int:
        """Bytes allocated so far."""
        return self.capacity * self.slots * self.memory.position_bytes

    def layer(self, index: int) -> Tensor:
        """Return one layer's [slots, capacity, 2 * key heads, head_dim]: keys, then values."""
        return self._layers[index]

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copy the first positions of one slot to another."""
        for memory in self._layers:
            memory[target, :positions] = memory[source, :positions]

    def clear(self, slot: int, start: int = 0, stop: int | None = None) -> None:
        """Zero positions of a slot that may not be finite.

        The next owner reads beyond its own end. Masked positions have weight zero, but zero times
        NaN is NaN.
        """
        for memory in self._layers:
            memory[slot, start:stop].zero_()

    def _allocate(self, capacity: int) -> None:
        # Layer by layer, so that only one layer exists twice at a time. If memory runs out midway,
        # some layers are larger than `capacity`, which is harmless.
        for index in range(self.shape.layers):
            memory = self._zeros(capacity)
            if index < len(self._layers):
                memory[:, : self.capacity] = self._layers[index][:, : self.capacity]
                self._layers[index] = memory
            else:
                self._layers.append(memory)
        self.capacity = capacity

    def _zeros(self, capacity: int) -> Tensor:
        """Return a layer's memory. Raises `FailedPrecondition`."""
        shape = self.shape
        size = (self.slots, capacity, 2 * shape.key_heads, shape.head_dim)
        if shape.device.type != "cpu":
            return torch.zeros(size, dtype=shape.dtype, device=shape.device)
        length = math.prod(size) * shape.dtype.itemsize
        try:
            memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise _no_room(f"{length / 1e9:.1f} GB a layer: {error}") from error
        # Small pages; otherwise a short sequence would take a huge page in each layer.
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        return torch.frombuffer(memory, dtype=shape.dtype).view(size)


def _no_room(what: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"slots, context_limit: keys and values take {what}; lower one of the two"
    )
