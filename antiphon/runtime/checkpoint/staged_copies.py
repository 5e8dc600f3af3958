"""Copies tensors from a memory-mapped file to a GPU through two pinned buffers.

A copy from pageable memory goes through a small buffer in the driver and blocks the host. Instead,
the host fills one pinned buffer, converting the dtype if necessary, while the device reads from the
other. The host needs memory only for these two buffers, regardless of the size of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

BUFFERS = 2
BUFFER_BYTES = 64 << 20


class CopyEvent(Protocol):
    """Marks a point in a series of copies, like `torch.cuda.Event`."""

    def record(self) -> None:
        """Mark the end of all copies that have been enqueued so far."""

    def synchronize(self) -> None:
        """Wait until the device has reached the mark. Returns immediately if no mark has
        been set.
        """


class _CudaCopyEvent:
    """Implements `CopyEvent` for the current stream of `device`, on which the copies are
    enqueued.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self) -> None:
        self._event.record(torch.cuda.current_stream(self._device))

    def synchronize(self) -> None:
        self._event.synchronize()


class StagedCopies:
    """Copies values from tensors on the host to tensors on a GPU."""

    def __init__(
        self,
        device: torch.device,
        *,
        buffer_bytes: int = BUFFER_BYTES,
        pinned: bool = True,
        new_event: Callable[[], CopyEvent] | None = None,
    ) -> None:
        """Create the buffers. Tests without a GPU pass their own `new_event` and set `pinned` to
        false.
        """
        self._buffers = [
            torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(BUFFERS)
        ]
        new_event = new_event or partial(_CudaCopyEvent, device)
        self._read_by_device = [new_event() for _ in range(BUFFERS)]
        self._next = 0

    def copy(self, target: Tensor, stored: Tensor) -> None:
        """Enqueue copies that fill `target` with the values of `stored`. Both tensors have the same
        shape, and `target` is contiguous.

        `stored` can be modified as soon as this returns. `target` is complete after a call to
        `finish`.
        """
        into, source = target.view(-1), stored.reshape(-1)
        step = self._buffers[0].nbytes // target.itemsize
        for first in range(0, len(source), step):
            part = source[first : first + step]
            buffer, read_by_device = self._buffers[self._next], self._read_by_device[self._next]
            self._next = (self._next + 1) % BUFFERS
            # The device may still be reading what was in the buffer before.
            read_by_device.synchronize()
            filled = buffer.view(target.dtype)[: len(part)].copy_(part)
            into[first : first + len(part)].copy_(filled, non_blocking=True)
            read_by_device.record()

    def finish(self) -> None:
        """Wait for all copies that have been enqueued."""
        for each in self._read_by_device:
            each.synchronize()
