"""The other process of a transfer between devices: takes what it is told of, and says when."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch


class SharedPages:
    """A file in memory that several processes map; `pinned`: the device copies it directly."""

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
        """Give the pages back."""
        if self._pinned:
            runtime: Any = torch.cuda.cudart()
            runtime.cudaHostUnregister(self.tensor.data_ptr())


def finish(device: torch.device) -> None:
    """Return when the device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def serve(orders: Connection, device_name: str) -> None:
    """Answer until None comes.

    A path with a size and `pinned` says which pages to read from then on, and a number of bytes to
    read them; a tensor is read at once. The answer to what was read is the sum of its first bytes.
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
        # What the sender has sent is its own: nothing of it may be held here.
        del source, order
        orders.send(int(target[:16].sum()))
    if pages is not None:
        pages.close()
