"""Tower inputs that depend only on shapes, computed on the host.

A Hugging Face tower derives its chunks, attention windows and row order from the given lengths. If
these are on a GPU, it reads them back before its first layer, and the windows again in every layer.
Each read makes all other sessions wait. So the family's functions compute them on the host, with
transformers' own code, and the tower takes them as arguments.
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
"""Inputs whose values every layer reads, so they stay on the host."""


class TowerPlan(Protocol):
    """How one family's towers are called."""

    def audio(self, tower: Any, features: Tensor, frames: Tensor) -> Iterator[TowerInputs]:
        """Yield the calls that encode `features` [mel bins, all frames]; their rows are
        consecutive.

        `frames` int64 [recordings] are the lengths of the recordings.
        """

    def vision(self, tower: Any, grid: Tensor) -> TowerInputs:
        """Return the inputs for an image or a video of this `grid` int64 [1, 3], besides its
        patches."""


def there(inputs: TowerInputs, device: torch.device) -> dict[str, Tensor]:
    """Return the inputs where a tower on `device` reads them."""
    return {
        name: each if name in READ_ON_HOST else on_device(each, device)
        for name, each in inputs.items()
    }
