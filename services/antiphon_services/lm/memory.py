"""A stage's device memory: checked before allocation, logged when the stage is ready.

Most memory left by the weights goes to the slots, each of which may hold the longest segment. On a
GPU everything is allocated at the start or rejected: a cache that outgrew the device would fail in
mid-answer. On a CPU memory is taken on write, so only impossible sizes are rejected, and the size
of a cache that allocates everything.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from antiphon.errors import InvalidArgument

WORKING_BYTES = 1 << 30
"""Estimate of GPU memory for a step's intermediates and for graphs; left free."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlotMemory:
    """Memory of `slots` sequences of at most `positions`, with `position_bytes` each."""

    slots: int
    positions: int
    position_bytes: int
    device: torch.device

    @property
    def bytes(self) -> int:
        """Bytes of all slots at full length."""
        return self.slots * self.positions * self.position_bytes

    def require_room(self, *, grows: bool = False) -> None:
        """Raise `InvalidArgument`, with numbers that fit, if the device has too little memory.

        A cache that `grows` is checked on a GPU only.
        """
        if grows and self.device.type == "cpu":
            return
        on_cpu = self.device.type == "cpu"
        room = _all_of_host() if on_cpu else max(free_bytes(self.device) - WORKING_BYTES, 0)
        if self.bytes <= room:
            return
        fit = room // self.position_bytes
        raise InvalidArgument(
            f"slots, context_limit: keys and values of {self.slots} slots of {self.positions} "
            f"positions take {_gb(self.bytes)} GB, and {self.device} has {_gb(room)} GB for them: "
            f"enough for {fit // self.positions} slots, or for a context_limit of "
            f"{fit // self.slots}; lower one of the two",
            field="slots",
        )


def free_bytes(device: torch.device) -> int:
    """Return a GPU's free memory, including what torch has reserved without using it."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free: int = torch.cuda.mem_get_info(device)[0]
    return free + unused


def module_bytes(module: torch.nn.Module) -> int:
    """Return the bytes of a module's weights and buffers."""
    return sum(each.nbytes for each in (*module.parameters(), *module.buffers()))


def say_memory(role: str, slots: SlotMemory, parts: Mapping[str, int], *, there: int) -> None:
    """Log the stage's memory by part: keys and values at full length, and `parts`.

    On a GPU, the rest of torch's memory belongs to tables, graphs and intermediates. `there` bytes
    of keys and values are allocated.
    """
    device = slots.device
    told = {**parts, "keys and values": slots.bytes}
    rest = "they are paid for as they are used"
    if device.type != "cpu":
        held = torch.cuda.memory_reserved(device)
        told["tables, graphs and buffers"] = max(held - sum(parts.values()) - there, 0)
        rest = f"{_gb(there)} GB of them are there, {_gb(free_bytes(device))} GB are free"
    log.info(
        "%s: %s GB on %s: %s; keys and values are those of %d slots of %d positions: %s",
        role,
        _gb(sum(told.values())),
        device,
        ", ".join(f"{name} {_gb(size)}" for name, size in told.items() if size),
        slots.slots,
        slots.positions,
        rest,
    )


def _all_of_host() -> int:
    """Return the machine's total memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f}"
