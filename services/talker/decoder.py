"""A stack of decoder layers over a key/value cache, for the talker and its code predictor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from services.talker.layer import Layer, Rotation, make_norm


@dataclass(frozen=True, slots=True)
class StackShape:
    """What a cache must know of a stack."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


class KeyValues:
    """Keys and values of one sequence in every layer: [layer, 2, heads, capacity, head_dim].

    Grows by doubling, so that a sequence pays for its own length and not for the
    context limit. `length` counts the positions that all layers hold.
    """

    def __init__(self, shape: StackShape, capacity: int) -> None:
        self._shape = shape
        self._data = self._allocate(capacity)
        self.length = 0

    def reserve(self, positions: int) -> None:
        """Make room for so many positions behind `length`."""
        needed, capacity = self.length + positions, self._data.shape[3]
        if needed > capacity:
            grown = self._allocate(max(needed, 2 * capacity))
            grown[..., : self.length, :] = self._data[..., : self.length, :]
            self._data = grown

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write [heads, n, head_dim] behind `length`; all keys and values up to there."""
        end = self.length + keys.shape[1]
        all_keys, all_values = self._data[layer, :, :, :end]
        all_keys[:, self.length :] = keys
        all_values[:, self.length :] = values
        return all_keys, all_values

    def _allocate(self, capacity: int) -> Tensor:
        shape = self._shape
        size = (shape.layers, 2, shape.heads, capacity, shape.head_dim)
        return torch.empty(size, dtype=shape.dtype, device=shape.device)


class Decoder:
    """A stack with final norm; positions are plain 0, 1, 2, ... up to `max_positions`.

    `model` is a `Qwen3OmniMoeTalkerModel` or a `Qwen3OmniMoeTalkerCodePredictorModel`.
    """

    def __init__(self, model: Any, max_positions: int) -> None:
        weight: Tensor = model.norm.weight
        self._layers = tuple(Layer(module) for module in model.layers)
        self._norm = make_norm(model.norm)
        self._rotation = Rotation.of(model.rotary_emb, max_positions, like=weight)
        self.shape = StackShape(
            layers=len(self._layers),
            heads=self._layers[0].key_heads,
            head_dim=model.layers[0].self_attn.head_dim,
            dtype=weight.dtype,
            device=weight.device,
        )

    def forward(self, rows: Tensor, cache: KeyValues) -> Tensor:
        """Append `rows` [n, hidden] to the sequence; their states after the final norm."""
        count, start = len(rows), cache.length
        cache.reserve(count)
        rotation, mask = self._rotation.at(start, count), self._mask(count, start)
        for index, layer in enumerate(self._layers):
            rows = layer.forward(rows, rotation, mask, partial(cache.append, index))
        cache.length += count
        return self._norm(rows)

    def _mask(self, count: int, start: int) -> Tensor | None:
        """Which positions each of `count` new ones sees: itself and all before it."""
        if count == 1:
            return None
        full = torch.ones(count, start + count, dtype=torch.bool, device=self.shape.device)
        return full.tril(start)
