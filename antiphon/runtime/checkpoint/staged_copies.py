"""Copies from a memory-mapped file to a GPU through two pinned buffers.

A copy from pageable memory passes through a small buffer of the driver and blocks the host.
Here the host fills one pinned buffer, converting the dtype, while the device reads the other.
The two buffers bound the host memory, whatever the size of the weights.
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
    """Marks a point in the order of copies, as `torch.cuda.Event` does."""

    def record(self) -> None:
        """Mark the end of the copies enqueued so far."""

    def synchronize(self) -> None:
        """Wait until the device reaches the mark. Returns at once if nothing was recorded."""


class _CudaCopyEvent:
    """Implements `CopyEvent` on the current stream of `device`, where copies are enqueued."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self) -> None:
        self._event.record(torch.cuda.current_stream(self._device))

    def synchronize(self) -> None:
        self._event.synchronize()


class StagedCopies:
    """Fills tensors on a GPU from tensors on the host."""

    def __init__(
        self,
        device: torch.device,
        *,
        buffer_bytes: int = BUFFER_BYTES,
        pinned: bool = True,
        new_event: Callable[[], CopyEvent] | None = None,
    ) -> None:
        """Tests without a GPU replace `new_event` and turn `pinned` off."""
        self._buffers = [
            torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(BUFFERS)
        ]
        new_event = new_event or partial(_CudaCopyEvent, device)
        self._read_by_device = [new_event() for _ in range(BUFFERS)]
        self._next = 0

    def copy(self, target: Tensor, stored: Tensor) -> None:
        """Enqueue copies that fill `target`, which is contiguous, from `stored` of equal shape.

        `stored` may change once this returns. `target` is complete after `finish`.
        """
        into, source = target.view(-1), stored.reshape(-1)
        step = self._buffers[0].nbytes // target.itemsize
        for first in range(0, len(source), step):
            part = source[first : first + step]
            buffer, read_by_device = self._buffers[self._next], self._read_by_device[self._next]
            self._next = (self._next + 1) % BUFFERS
            # The device may still be reading the buffer's previous content.
            read_by_device.synchronize()
            filled = buffer.view(target.dtype)[: len(part)].copy_(part)
            into[first : first + len(part)].copy_(filled, non_blocking=True)
            read_by_device.record()

    def finish(self) -> None:
        """Wait for all enqueued copies."""
        for each in self._read_by_device:
            each.synchronize()
