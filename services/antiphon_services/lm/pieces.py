"""Performs a decoder's forward pass for a small number of rows. Everything except attention runs in
buckets.

Attention doesn't run in buckets. The host determines how many positions a row can attend to and
which rows share a call, and both change from step to step. Everything between the attention of two
consecutive layers depends only on the number of rows and forms one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from antiphon_services.lm.graphs import Bucketing
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.kv_cache import CacheShape
from antiphon_services.lm.layer import FusedLayer, Layer, Norm
from antiphon_services.lm.rotary import Rotation

# Like `Attend`, but with the layer number as an additional first argument.
AttendInLayer = Callable[[int, Tensor, Tensor], Tensor]


class Pieces:
    """The pieces of a `lm.decoder.Decoder`, for at least `least` and at most `most` rows of width
    `width`.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        norm: Norm,
        rotation: Rotation,
        shape: CacheShape,
        *,
        width: int,
        least: int,
        most: int,
        bucketing: Bucketing,
    ) -> None:
        self.most = most
        self._layers, self._norm, self._rotation = layers, norm, rotation
        new = partial(torch.zeros, dtype=shape.dtype, device=shape.device)
        # All pieces can share these buffers, because each piece consumes its input before the next
        # one writes to them.
        rows, mixed = new(most, width), new(most, layers[0].queries, shape.head_dim)
        positions = new(most, dtype=torch.int64)
        # Capture the pieces in the order of a forward pass, as required for graphs that share
        # memory.
        self._first = bucketing(self._enter, (rows, positions), least)
        self._between = [
            bucketing(partial(self._go_on, at), (rows, mixed, positions), least)
            for at in range(len(layers) - 1)
        ]
        self._last = bucketing(self._leave, (rows, mixed), least)

    def forward(
        self, rows: Tensor, positions: Tensor, attend: AttendInLayer, tapped_layer: int
    ) -> tuple[Tensor, Tensor]:
        """Implement `Decoder.append` for rows [n, hidden] at `positions` (int64 [n]).

        The returned states are valid until the next forward pass.
        """
        tapped = rows
        (heads,) = self._first(rows, positions)
        for at, between in enumerate(self._between):
            mixed = attend(at, *self._layers[at].split(heads))
            rows, heads = between(rows, mixed, positions)
            if at + 1 == tapped_layer:
                tapped = rows
        last = len(self._between)
        (states,) = self._last(rows, attend(last, *self._layers[last].split(heads)))
        return states, tapped

    def _enter(self, rows: Tensor, positions: Tensor) -> tuple[Tensor]:
        return (self._layers[0].enter(rows, self._rotation.at(positions)),)

    def _go_on(
        self, at: int, rows: Tensor, mixed: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows = self._layers[at].leave(rows, mixed)
        return rows, self._layers[at + 1].enter(rows, self._rotation.at(positions))

    def _leave(self, rows: Tensor, mixed: Tensor) -> tuple[Tensor]:
        return (self._norm(self._layers[-1].leave(rows, mixed)),)


class FusedPieces(Pieces):
    """Pieces with fused kernels. Each norm includes the addition that precedes it."""

    def __init__(
        self, layers: Sequence[FusedLayer], norm: Norm, kernels: Kernels, *args: Any, **kwargs: Any
    ) -> None:
        self._fused_layers, self._kernels = layers, kernels
        super().__init__(layers, norm, *args, **kwargs)

    def _enter(self, rows: Tensor, positions: Tensor) -> tuple[Tensor]:
        return (self._fused_layers[0].enter_fused(rows, None, self._rotation, positions)[1],)

    def _go_on(
        self, at: int, rows: Tensor, mixed: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows, delta = self._fused_layers[at].leave_fused(rows, mixed)
        return self._fused_layers[at + 1].enter_fused(rows, delta, self._rotation, positions)

    def _leave(self, rows: Tensor, mixed: Tensor) -> tuple[Tensor]:
        rows, delta = self._fused_layers[-1].leave_fused(rows, mixed)
        return (self._kernels.add_norm(rows, delta, self._norm.weight, self._norm.epsilon)[1],)
