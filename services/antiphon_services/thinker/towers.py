"""The inputs of a tower that depend only on shapes. They are computed on the host.

A Hugging Face tower derives its chunks, its attention windows and the order of its rows from the
given lengths. If these are on a GPU, the tower reads them back before its first layer, and it reads
the windows again in every layer. Each read makes all other sessions wait. Therefore functions of
the family compute these inputs on the host with transformers' own code, and pass them to the tower
as arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from antiphon.transport.device_edge import on_device

TowerInputs = Mapping[str, Tensor]
"""The arguments of a tower by name, on the host."""

READ_ON_HOST = frozenset({"cu_seqlens", "cu_window_seqlens"})
"""Inputs whose values every layer reads. They stay on the host."""


class TowerPlan(Protocol):
    """How the towers of one family are called."""

    def audio(self, tower: Any, features: Tensor, frames: Tensor) -> Iterator[TowerInputs]:
        """Yield the calls that encode `features` [mel bins, all frames]. Their rows are
        consecutive.

        `frames` (int64 [recordings]) contains the lengths of the recordings.
        """

    def vision(self, tower: Any, grid: Tensor) -> TowerInputs:
        """Return all inputs except the patches, for an image or a video with this `grid` (int64 [1,
        3]).
        """


def there(inputs: TowerInputs, device: torch.device) -> dict[str, Tensor]:
    """Return the inputs in the place from which a tower on `device` reads them."""
    return {
        name: each if name in READ_ON_HOST else on_device(each, device)
        for name, each in inputs.items()
    }
