"""A decoder's forward of few rows, with all but attention run by bucket.

How many positions a row sees, and which rows share a call, is known on the host and
changes from step to step: so attention stays as it is. What lies between one layer's
attention and the next one's depends on the number of rows alone and is one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from services.graphs import Bucketing
from services.talker.experts import LEAST_ROWS
from services.talker.layer import Attend, Layer, Norm, Rotation
from services.talker.slots import StackShape


class Pieces:
    """What `services.talker.decoder.Decoder` is made of, for at most `most` rows.

    `width` is that of a row.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        norm: Norm,
        rotation: Rotation,
        shape: StackShape,
        width: int,
        most: int,
        bucketing: Bucketing,
    ) -> None:
        self.most = most
        self._layers, self._norm, self._rotation = layers, norm, rotation
        new = partial(torch.zeros, dtype=shape.dtype, device=shape.device)
        # All pieces share them: what one has taken in, it does not need any more.
        rows, mixed = new(most, width), new(most, layers[0].queries, shape.head_dim)
        positions = new(most, dtype=torch.int64)
        # In the order of a forward, as graphs that share memory must be.
        self._first = bucketing(self._enter, (rows, positions), LEAST_ROWS)
        self._between = [
            bucketing(partial(self._go_on, at), (rows, mixed, positions), LEAST_ROWS)
            for at in range(len(layers) - 1)
        ]
        self._last = bucketing(self._leave, (rows, mixed), LEAST_ROWS)

    def forward(self, rows: Tensor, positions: Tensor, attend: Sequence[Attend]) -> Tensor:
        """`Decoder.forward` of rows [n, hidden] at `positions` int64 [n], by layer's `attend`.

        The states are good until the next forward.
        """
        (heads,) = self._first(rows, positions)
        for layer, mix, between in zip(self._layers, attend, self._between, strict=False):
            rows, heads = between(rows, mix(*layer.split(heads)), positions)
        (states,) = self._last(rows, attend[-1](*self._layers[-1].split(heads)))
        return states

    def _enter(self, rows: Tensor, positions: Tensor) -> tuple[Tensor]:
        return (self._layers[0].enter(rows, self._rotation.at(positions)),)

    def _go_on(
        self, at: int, rows: Tensor, mixed: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows = self._layers[at].leave(rows, mixed)
        return rows, self._layers[at + 1].enter(rows, self._rotation.at(positions))

    def _leave(self, rows: Tensor, mixed: Tensor) -> tuple[Tensor]:
        return (self._norm(self._layers[-1].leave(rows, mixed)),)
