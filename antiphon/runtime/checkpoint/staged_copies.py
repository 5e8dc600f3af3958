"""Copies tensors from a memory-mapped file to a GPU through two pinned buffers.

A copy from pageable memory goes through a small buffer of the driver, and blocks the host. Here,
the host converts the dtype and fills one pinned buffer while the device reads the other. The amount
of host memory is the size of these two buffers, however large the weights are.
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
    """Marks a point in the sequence of copies, like `torch.cuda.Event`."""

    def record(self) -> None:
        """Mark the end of the copies that have been enqueued so far."""

    def synchronize(self) -> None:
        """Wait until the device reaches the mark. Returns immediately if nothing has been
        recorded.
        """


class _CudaCopyEvent:
    """Implements `CopyEvent` on the current stream of `device`, on which copies are enqueued."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self) -> None:
        self._event.record(torch.cuda.current_stream(self._device))

    def synchronize(self) -> None:
        self._event.synchronize()


class StagedCopies:
    """Fills tensors on a GPU with the values of tensors on the host."""

    def __init__(
        self,
        device: torch.device,
        *,
        buffer_bytes: int = BUFFER_BYTES,
        pinned: bool = True,
        new_event: Callable[[], CopyEvent] | None = None,
    ) -> None:
        """Create the buffers. Tests that run without a GPU pass a different `new_event` and set
        `pinned` to false.
        """
        self._buffers = [
            torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(BUFFERS)
        ]
        new_event = new_event or partial(_CudaCopyEvent, device)
        self._read_by_device = [new_event() for _ in range(BUFFERS)]
        self._next = 0

    def copy(self, target: Tensor, stored: Tensor) -> None:
        """Enqueue copies that fill `target` with the values of `stored`. Both have the same shape,
        and `target` is contiguous.

        `stored` may be modified once this call returns. `target` is complete after `finish`.
        """
        into, source = target.view(-1), stored.reshape(-1)
        step = self._buffers[0].nbytes // target.itemsize
        for first in range(0, len(source), step):
            part = source[first : first + step]
            buffer, read_by_device = self._buffers[self._next], self._read_by_device[self._next]
            self._next = (self._next + 1) % BUFFERS
            # The device may still be reading the previous content of the buffer.
            read_by_device.synchronize()
            filled = buffer.view(target.dtype)[: len(part)].copy_(part)
            into[first : first + len(part)].copy_(filled, non_blocking=True)
            read_by_device.record()

    def finish(self) -> None:
        """Wait until all copies that have been enqueued are complete."""
        for each in self._read_by_device:
            each.synchronize()
