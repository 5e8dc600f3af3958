"""What Hugging Face's towers compute from the shapes of their inputs alone, computed on the host.

A tower works out its chunks, the windows of its attention and where their rows go from the lengths
that it is given. If these are on a GPU, it asks the device for them before its first layer, and for
the windows again in every layer; each question makes all other sessions wait. So the family's
functions compute them on the host, with transformers' own, and the tower takes them as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from antiphon.transport.device_edge import on_device

TowerInputs = Mapping[str, Tensor]
"""Arguments of a tower by name, on the host."""

READ_ON_HOST = frozenset({"cu_seqlens", "cu_window_seqlens"})
"""Of these every layer reads the numbers, so they stay on the host."""


class TowerPlan(Protocol):
    """How one family's towers are called."""

    def audio(self, tower: Any, features: Tensor, frames: Tensor) -> Iterator[TowerInputs]:
        """The calls that encode `features` [mel bins, all frames] of recordings of so many `frames`
        int64 [recordings]; their rows follow each other."""

    def vision(self, tower: Any, grid: Tensor) -> TowerInputs:
        """What the call for an image or a video of this `grid` int64 [1, 3] needs beside its
        patches."""


def there(inputs: TowerInputs, device: torch.device) -> dict[str, Tensor]:
    """The inputs where a tower on `device` reads them."""
    return {
        name: each if name in READ_ON_HOST else on_device(each, device)
        for name, each in inputs.items()
    }
