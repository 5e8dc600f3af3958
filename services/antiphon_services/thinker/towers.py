"""Tower inputs that depend only on shapes, so that they can be computed on the host.

A Hugging Face tower uses the lengths of its inputs to derive chunks, attention windows and the
order of its rows. If the lengths are on a GPU, the tower reads them back before its first layer and
reads the windows again in every layer. Each of these reads would make all other sessions wait. To
avoid this, each family computes the values on the host with transformers' own code and passes them
to the tower as arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from antiphon.transport.device_edge import on_device

TowerInputs = Mapping[str, Tensor]
"""Keyword arguments for a tower, on the host."""

READ_ON_HOST = frozenset({"cu_seqlens", "cu_window_seqlens"})
"""Inputs whose values are read by every layer. They remain on the host."""


class TowerPlan(Protocol):
    """Defines how a family's towers are called."""

    def audio(self, tower: Any, features: Tensor, frames: Tensor) -> Iterator[TowerInputs]:
        """Yield the calls for encoding `features` [mel bins, all frames]. The concatenated results
        are the rows in order.

        `frames` (int64 [recordings]) contains the lengths of the recordings.
        """

    def vision(self, tower: Any, grid: Tensor) -> TowerInputs:
        """Return all inputs except the patches for an image or a video. `grid` is int64 [1, 3]."""


def there(inputs: TowerInputs, device: torch.device) -> dict[str, Tensor]:
    """Move each input to the place from which a tower on `device` reads it."""
    return {
        name: each if name in READ_ON_HOST else on_device(each, device)
        for name, each in inputs.items()
    }
