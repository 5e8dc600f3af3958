"""Keys and values of many sessions in one fixed piece of memory, by slot.

Memory is `slots * positions`, taken when the stage loads and never moved, so that a
segment that has a slot has room up to the context limit. A slot is a row of the
tensors; there are no pages, since a slot's positions are contiguous and attention
reads them where they are.

On a CPU the memory is a mapping that the system fills as it is written to: 16 slots of
32768 positions are asked for, but only positions that sessions have reached are paid
for. It may not be larger than the machine's memory, or the promise would be hollow.

How a row's attention is computed depends on its own position alone, never on the
company, so that its digits do not either:

- A new position sees its slot's positions up to the next power of two, the rest of
  them masked. Rows with the same power share one call. Padding all to the longest
  would let one long session cost as much for everyone.
- A chunk of a prompt is one call for itself, with the boundaries that the prompt gives.

Masked positions count with weight zero, but zero times not-a-number is not zero: a
slot whose contents may not be finite is cleared when it is given back.
"""

from __future__ import annotations

import heapq
import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from antiphon.errors import FailedPrecondition, ResourceExhausted
from antiphon.transport.device_edge import on_device

LEAST_POSITIONS = 64


@dataclass(frozen=True, slots=True)
class StackShape:
    """What keys and values must know of a stack of layers."""

    layers: int
    key_heads: int
    head_dim: int
    scale: float
    dtype: torch.dtype
    device: torch.device

    def bytes_per_position(self) -> int:
        """Keys and values of one position in all layers."""
        return 2 * self.layers * self.key_heads * self.head_dim * self.dtype.itemsize


class Place(NamedTuple):
    """Where one new row goes."""

    slot: int
    position: int


class Stretch(NamedTuple):
    """Where consecutive new rows of one slot go."""

    slot: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that attend in one call: to `slots` up to `positions`, as `mask` says.

    `mask` adds 0 or -inf: [n, 1, 1, positions] when each of n rows has a slot of its
    own, [n, positions] when `stretch` and all have one.
    """

    rows: slice
    slots: slice | Tensor
    positions: int
    mask: Tensor
    stretch: bool


class SlotCache:
    """`positions` keys and values for each of `slots` segments, and who has which slot."""

    def __init__(self, shape: StackShape, slots: int, positions: int) -> None:
        self.shape, self.slots, self.positions = shape, slots, positions
        self.bytes = slots * positions * shape.bytes_per_position()
        # By layer, slot and position: the heads of keys, then those of values.
        size = (shape.layers, slots, positions, 2 * shape.key_heads, shape.head_dim)
        self.memory = _allocate(self.bytes, shape).view(size)
        self._free = list(range(slots))

    def take(self) -> int:
        """The lowest free slot, as slots side by side are read in place.

        Raises `ResourceExhausted`.
        """
        if not self._free:
            raise ResourceExhausted(f"all {self.slots} slots are taken")
        return heapq.heappop(self._free)

    def give_back(self, slot: int, *, clear: range = range(0)) -> None:
        """Make the slot free; the positions `clear` may hold what is not finite.

        It may be taken at once: what the device has yet to do there comes before what it
        is asked from now on.
        """
        if clear:
            self.memory[:, slot, clear.start : clear.stop] = 0
        heapq.heappush(self._free, slot)


class SlotRows:
    """New rows of one forward: those of `stretches`, then those of `places`, by slot.

    `places` must be sorted by `attention_key`. Rows behind these attend to nothing and
    are not remembered.
    """

    def __init__(
        self, cache: SlotCache, stretches: Sequence[Stretch], places: Sequence[Place]
    ) -> None:
        self._cache = cache
        device = cache.shape.device
        where = [(each.slot, at) for each in stretches for at in range(each.start, each.stop)]
        where += places
        self._slots, self.positions = on_device(where, device).unbind(1)
        self.count = len(where)
        self._groups = self._group(stretches, places)

    def attend(self, layer: int, queries: Tensor, memory: Tensor) -> Tensor:
        """Remember the rows' keys and values, and mix; see `services.talker.layer.Attend`."""
        count, cache = self.count, self._cache
        cache.memory[layer][self._slots, self.positions] = memory[:count]
        mixed = [self._mix(layer, queries, group) for group in self._groups]
        if count < len(queries):
            mixed.append(queries.new_zeros(queries[count:].shape))
        return torch.cat(mixed) if len(mixed) > 1 else mixed[0]

    def _mix(self, layer: int, queries: Tensor, group: _Group) -> Tensor:
        cache, asked = self._cache, queries[group.rows]
        seen = cache.memory[layer][:, : group.positions][group.slots].transpose(1, 2)
        keys, values = seen.chunk(2, dim=1)
        if group.stretch:
            asked = asked.transpose(0, 1)[None]
        else:  # one position of a slot: heads that share a key are rows of one product
            asked = asked.view(len(asked), cache.shape.key_heads, -1, cache.shape.head_dim)
        mixed = scaled_dot_product_attention(
            asked,
            keys,
            values,
            attn_mask=group.mask,
            scale=cache.shape.scale,
            enable_gqa=group.stretch,
        )
        return mixed[0].transpose(0, 1) if group.stretch else mixed.flatten(1, 2)

    def _group(self, stretches: Sequence[Stretch], places: Sequence[Place]) -> list[_Group]:
        groups, start = [], 0
        for slot, first, stop in stretches:
            rows, seen = slice(start, start + stop - first), self._seen(stop - 1)
            mask = self._mask(rows, seen)
            groups.append(_Group(rows, slice(slot, slot + 1), seen, mask, stretch=True))
            start = rows.stop
        for seen, alike in groupby(places, key=lambda place: self._seen(place.position)):
            slots = [place.slot for place in alike]
            rows = slice(start, start + len(slots))
            mask = self._mask(rows, seen)[:, None, None]
            groups.append(_Group(rows, self._index(slots), seen, mask, stretch=False))
            start = rows.stop
        return groups

    def _seen(self, position: int) -> int:
        """How many positions the call reads for a row at `position`."""
        return min(attention_key(Place(0, position))[0], self._cache.positions)

    def _mask(self, rows: slice, seen: int) -> Tensor:
        """[rows, seen]: 0 up to a row's own position, -inf behind."""
        shape = self._cache.shape
        later = torch.arange(seen, device=shape.device) > self.positions[rows, None]
        zeros = torch.zeros(later.shape, dtype=shape.dtype, device=shape.device)
        return zeros.masked_fill_(later, -math.inf)

    def _index(self, slots: list[int]) -> slice | Tensor:
        """Ascending slots: read in place where they are side by side, else copied."""
        if slots[-1] - slots[0] == len(slots) - 1:
            return slice(slots[0], slots[-1] + 1)
        return on_device(slots, self._cache.shape.device)


def attention_key(place: Place) -> tuple[int, int]:
    """What places are sorted by: how many positions are read, then the slot."""
    return max(LEAST_POSITIONS, 1 << place.position.bit_length()), place.slot


def _allocate(size: int, shape: StackShape) -> Tensor:
    """Zeros of `size` bytes, flat. Raises `FailedPrecondition` if there is no room."""
    on_cpu = shape.device.type == "cpu"
    if on_cpu:
        room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        room = torch.cuda.mem_get_info(shape.device)[0]
    if size > room:
        raise FailedPrecondition(
            f"slots, context_limit: keys and values take {size / 1e9:.1f} GB, and "
            f"{shape.device} has {room / 1e9:.1f} GB; lower one of the two"
        )
    if not on_cpu:
        return torch.zeros(size // shape.dtype.itemsize, dtype=shape.dtype, device=shape.device)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise FailedPrecondition(f"slots, context_limit: {size / 1e9:.1f} GB: {error}") from error
    # Small pages, or a short session would pay for a huge one in each layer.
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=shape.dtype)
