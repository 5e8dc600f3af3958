"""Checks a stage's device memory before it is allocated and logs its use when the stage is ready.

Most of the memory that remains after loading the weights is used for slots. Any slot may have to
store a segment of the maximum length. On a GPU, either all of this memory is allocated at startup
or the configuration is rejected. Otherwise, a cache could outgrow the device's memory and fail in
the middle of an answer. On a CPU, memory is only allocated when it is written. The cache is
therefore checked against the machine's total memory, and only if it allocates everything at
startup.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from antiphon.errors import InvalidArgument

WORKING_BYTES = 1 << 30
"""An estimate of the GPU memory needed for graphs and for the intermediate values of a step. This
amount is kept free.
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlotMemory:
    """The memory for `slots` sequences of up to `positions` positions, each of which takes up
    `position_bytes` bytes.
    """

    slots: int
    positions: int
    position_bytes: int
    device: torch.device

    @property
    def bytes(self) -> int:
        """The size in bytes if all slots are full."""
        return self.slots * self.positions * self.position_bytes

    def require_room(self, *, grows: bool = False) -> None:
        """Raise `InvalidArgument` if the device doesn't have enough memory. The error message
        suggests numbers that would fit.

        If the cache `grows`, this is only checked on a GPU.
        """
        if grows and self.device.type == "cpu":
            return
        on_cpu = self.device.type == "cpu"
        room = _all_of_host() if on_cpu else max(free_bytes(self.device) - WORKING_BYTES, 0)
        if self.bytes <= room:
            return
        fit = room // self.position_bytes
        raise InvalidArgument(
            f"slots, context_limit: keys and values of {self.slots} slots with {self.positions} "
            f"positions take {_gb(self.bytes)} GB, but {self.device} only has {_gb(room)} GB "
            f"available, which is enough for {fit // self.positions} slots, or for a "
            f"context_limit of {fit // self.slots}; reduce one of these settings",
            field="slots",
        )


def free_bytes(device: torch.device) -> int:
    """Return the amount of free GPU memory in bytes. This includes memory that torch has reserved
    but doesn't use.
    """
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free: int = torch.cuda.mem_get_info(device)[0]
    return free + unused


def module_bytes(module: torch.nn.Module) -> int:
    """Return the size of a module's weights and buffers in bytes."""
    return sum(each.nbytes for each in (*module.parameters(), *module.buffers()))


def say_memory(role: str, slots: SlotMemory, parts: Mapping[str, int], *, there: int) -> None:
    """Log how the stage uses its memory. The log line lists the keys and values of full slots, and
    the sizes in `parts`.

    On a GPU, torch uses the remaining memory for tables, graphs and intermediate values. `there` is
    the size, in bytes, of the keys and values that have already been allocated.
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
    """Return the machine's total memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f}"
