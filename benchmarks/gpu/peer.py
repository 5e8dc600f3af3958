"""The other process of a transfer between devices.

It reads the data whose location it receives, and reports when it is done.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch


class SharedPages:
    """A memory-backed file that several processes map.

    If `pinned` is true, the device can copy it directly.
    """

    def __init__(self, path: Path, size: int, device: torch.device, *, pinned: bool) -> None:
        self._mapped = np.memmap(path, np.uint8, "r+", shape=(size,))
        self.tensor = torch.from_numpy(self._mapped)
        self._pinned = pinned and device.type == "cuda"
        if self._pinned:
            runtime: Any = torch.cuda.cudart()
            told = int(runtime.cudaHostRegister(self.tensor.data_ptr(), size, 0))
            if told:
                raise RuntimeError(f"cudaHostRegister: error {told}")

    def close(self) -> None:
        """Unregister the pages."""
        if self._pinned:
            runtime: Any = torch.cuda.cudart()
            runtime.cudaHostUnregister(self.tensor.data_ptr())


def finish(device: torch.device) -> None:
    """Wait until the device has completed all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def serve(orders: Connection, device_name: str) -> None:
    """Process orders until None is received.

    A path with a size and `pinned` selects the pages to read. A number of bytes reads these pages.
    A tensor is read directly. The response to a read is the sum of its first bytes.
    """
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    pages: SharedPages | None = None
    target = torch.empty(0, dtype=torch.uint8, device=device)
    orders.send("ready")
    while (order := orders.recv()) is not None:
        if isinstance(order, tuple):
            path, size, pinned = order
            if pages is not None:
                pages.close()
            pages = SharedPages(path, size, device, pinned=pinned)
            orders.send("mapped")
            continue
        if isinstance(order, int):
            assert pages is not None
            source = pages.tensor[:order]
        else:
            source = order
        if len(target) < len(source):
            target = torch.empty(len(source), dtype=torch.uint8, device=device)
        target[: len(source)].copy_(source, non_blocking=True)
        finish(device)
        # The sender owns the data, so no references may be kept here.
        del source, order
        orders.send(int(target[:16].sum()))
    if pages is not None:
        pages.close()
