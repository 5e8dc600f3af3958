"""A stack of decoder layers, for the talker and its code predictor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from services.graphs import Bucketing
from services.talker.experts import LEAST_ROWS
from services.talker.layer import Layer, Rotation, make_norm
from services.talker.pieces import Pieces
from services.talker.slots import SlotRows, StackShape

# `Attend` of a layer, which comes first.
AttendInLayer = Callable[[int, Tensor, Tensor], Tensor]


class Decoder:
    """A stack with final norm; positions are whole numbers below `max_positions`.

    `model` is a `Qwen3OmniMoeTalkerModel` or a `Qwen3OmniMoeTalkerCodePredictorModel`.
    With `bucketing`, up to `most_rows` rows of slots go through by it, where they can.
    """

    def __init__(
        self,
        model: Any,
        max_positions: int,
        bucketing: Bucketing | None = None,
        most_rows: int = 0,
    ) -> None:
        weight: Tensor = model.norm.weight
        self._layers = tuple(Layer(module) for module in model.layers)
        self._norm = make_norm(model.norm)
        self.rotation = Rotation.of(model.rotary_emb, max_positions, like=weight)
        attention = model.layers[0].self_attn
        self.shape = StackShape(
            layers=len(self._layers),
            key_heads=self._layers[0].key_heads,
            head_dim=attention.head_dim,
            scale=attention.scaling,
            dtype=weight.dtype,
            device=weight.device,
        )
        self.asks_device = any(layer.asks_device for layer in self._layers)
        # On a CPU asking is free.
        fit = weight.device.type == "cpu" or not self.asks_device
        self._pieces = self._cut(len(weight), most_rows, bucketing) if bucketing and fit else None

    def _cut(self, width: int, most_rows: int, bucketing: Bucketing) -> Pieces:
        return Pieces(
            self._layers, self._norm, self.rotation, self.shape, width, most_rows, bucketing
        )

    def forward(self, rows: Tensor, rotation: Rotation, attend: AttendInLayer) -> Tensor:
        """States [n, hidden] after the final norm of `rows` [n, hidden]."""
        for index, layer in enumerate(self._layers):
            rows = layer.forward(rows, rotation, partial(attend, index))
        normed: Tensor = self._norm(rows)
        return normed

    def forward_slots(self, rows: Tensor, where: SlotRows, turned: Tensor | None = None) -> Tensor:
        """Append rows [n, hidden] to the sequences of slots; their states.

        `turned` are the positions that turn them where these are not their places in the
        slot: int64 [n], or [n, 3] where a row's axes differ.
        Fewer than `LEAST_ROWS` are filled up for the time being. States are good until the
        next call.
        """
        missing = max(len(rows), LEAST_ROWS) - where.count
        positions = where.positions if turned is None else turned
        positions = pad(positions, (0, missing) if positions.ndim == 1 else (0, 0, 0, missing))
        rows = pad(rows, (0, 0, 0, missing - len(rows) + where.count))
        plain = positions.ndim == 1
        if self._pieces is not None and plain and len(rows) <= self._pieces.most:
            attend = [partial(where.attend, index) for index in range(len(self._layers))]
            return self._pieces.forward(rows, positions, attend)
        return self.forward(rows, self.rotation.at(positions), where.attend)
