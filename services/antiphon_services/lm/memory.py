"""What a stage takes of its device, checked before it is taken and said when the stage is ready.

Most of what is free behind the weights goes to the slots, each of which may become as long as the
longest segment. On a GPU the sum is there from the start, or refused: a cache that outgrows the
device would fail in the middle of an answer. On a CPU memory is paid for as it is written to, so
only what could never be there is refused, and that of a cache which promises all of it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from antiphon.errors import InvalidArgument

WORKING_BYTES = 1 << 30
"""Left free on a GPU for what a step computes with and for graphs; an estimate."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlotMemory:
    """What `slots` sequences of at most `positions` take, each position of a slot so many bytes."""

    slots: int
    positions: int
    position_bytes: int
    device: torch.device

    @property
    def bytes(self) -> int:
        """Of all, when all are at their longest."""
        return self.slots * self.positions * self.position_bytes

    def require_room(self, *, grows: bool = False) -> None:
        """Raise `InvalidArgument`, with numbers that would fit, unless the device has so much. What
        `grows` has to be there on a GPU alone."""
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
    """What a GPU has left, and what torch holds there without using it."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free: int = torch.cuda.mem_get_info(device)[0]
    return free + unused


def module_bytes(module: torch.nn.Module) -> int:
    """What the weights and buffers of a module take."""
    return sum(each.nbytes for each in (*module.parameters(), *module.buffers()))


def say_memory(role: str, slots: SlotMemory, parts: Mapping[str, int], *, there: int) -> None:
    """Log what the stage takes, by part: keys and values at their longest, and these `parts`.

    On a GPU what torch holds beyond these is that of tables, graphs and what steps compute with;
    of keys and values so many bytes are `there`.
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
    """The memory that the machine has at all."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f}"
