"""A transformer layer whose norms are scaled and shifted depending on the time of the flow (DiT,
AdaLN-zero).

Scales, shifts and gates only depend on the time, so they are computed once for each evaluation.
Only the queries and keys of the first head are rotated, in interleaved pairs. When the weights are
loaded, these rows are reordered into the two halves that `antiphon_services.lm.rotary` rotates,
which doesn't change any product of a query and a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, pad, scaled_dot_product_attention

from antiphon_services.lm.rotary import Rotation

NORM_EPSILON = 1e-6

Affine = tuple[Tensor, Tensor]
"""A weight and a bias."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of a layer.

    `changes` [evaluations, 6 * width] contains the shift, scale and gate for attention, followed by
    those for the MLP.
    """

    changes: Tensor
    query: Affine
    key: Affine
    value: Affine
    output: Affine
    up: Affine
    down: Affine

    @classmethod
    def of_block(cls, block: Any, embedding: Tensor, up: Any, down: Any) -> Self:
        """Return the weights of a block whose modules are named as in F5-TTS (`attn_norm` and
        `attn`).

        `embedding` [evaluations, width] is the embedding of the times, after SiLU. `up` and `down`
        are the MLP's linear modules, which have different names in different models.
        """
        attention = block.attn
        projections = (attention.to_q, attention.to_k, attention.to_v, attention.to_out[0])
        affine = ((each.weight, each.bias) for each in (*projections, up, down))
        return cls(block.attn_norm.linear(embedding), *affine)


Window = TypeVar("Window")
AnyWindow = TypeVar("AnyWindow", contravariant=True)


class SeenRows(Protocol[AnyWindow]):
    """Determines the rows in a call, and the keys and values that they attend to in each layer."""

    def seen(self, own: Tensor, evaluation: Any, window: AnyWindow) -> tuple[Tensor, Tensor | None]:
        """Return the keys and values that the rows attend to, and a mask. The mask is None if every
        row attends to all keys.

        `own` [sequences, 2, rows, heads, head_dim] contains the keys and values of the rows
        themselves, in the layer with this `window`. `evaluation` has the same meaning as in
        `TimedLayer.forward`.
        """


class AllRows:
    """The rows from `first` to `stop` of a sequence, which are computed together. Each row attends
    to all of them.

    Subclasses compute only some of the rows, or restrict attention. The window of a layer is its
    number.
    """

    def __init__(self, first: int, stop: int) -> None:
        self.first, self.stop = first, stop

    def seen(self, own: Tensor, evaluation: int, window: int) -> tuple[Tensor, Tensor | None]:
        """Implement `SeenRows`. The mask is bool [rows, keys] and is True where a row attends to a
        key.
        """
        return own, None

    def preceded(self, x: Tensor, evaluation: int, convolution: int, reach: int) -> Tensor:
        """Return the inputs of a convolution [sequences, channels, n], with the previous `reach`
        inputs before them.

        The beginning of the sequence is preceded by zeros.
        """
        return pad(x, (reach, 0))


class TimedLayer(Generic[Window]):
    """A layer with `heads` attention heads. `window` determines which rows each row attends to."""

    def __init__(self, weights: LayerWeights, heads: int, window: Window) -> None:
        self._heads, self.window = heads, window
        self._head_dim = len(weights.query[0]) // heads
        shift, scale, self._gate, mlp_shift, mlp_scale, self._mlp_gate = weights.changes.chunk(6, 1)
        self._first_norm = (1 + scale, shift)
        self._second_norm = (1 + mlp_scale, mlp_shift)
        parts = (self._halved(weights.query), self._halved(weights.key), weights.value)
        self._in = (torch.cat([each[0] for each in parts]), torch.cat([each[1] for each in parts]))
        self._out, self._up, self._down = weights.output, weights.up, weights.down

    def forward(
        self,
        rows: Tensor,
        evaluation: int | Tensor,
        rotation: Rotation,
        among: SeenRows[Window],
    ) -> Tensor:
        """Return the layer's output [sequences, n, width].

        `evaluation` is either a number, or an int64 tensor [1] on the device, which can be read
        within a CUDA graph.
        """
        normed = modulated(rows, self._first_norm, evaluation)
        attended = self._attend(normed, evaluation, rotation, among)
        rows = torch.addcmul(rows, _at(self._gate, evaluation), attended)
        normed = modulated(rows, self._second_norm, evaluation)
        inner = gelu(linear(normed, *self._up), approximate="tanh")
        return torch.addcmul(rows, _at(self._mlp_gate, evaluation), linear(inner, *self._down))

    def _attend(
        self,
        normed: Tensor,
        evaluation: int | Tensor,
        rotation: Rotation,
        among: SeenRows[Window],
    ) -> Tensor:
        sequences, count, _ = normed.shape
        heads = linear(normed, *self._in).view(sequences, count, 3, self._heads, self._head_dim)
        first = heads[:, :, :2, 0]
        rotation.apply(first, out=first)
        own = heads[:, :, 1:].transpose(1, 2)
        seen, mask = among.seen(own, evaluation, self.window)
        keys, values = seen.transpose(2, 3).unbind(1)
        queries = heads[:, :, 0].transpose(1, 2)
        mixed = scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return linear(mixed.transpose(1, 2).flatten(2), *self._out)

    def _halved(self, projection: Affine) -> Affine:
        """Return a copy of the projection in which the first head's even rows come before its odd
        rows.
        """
        weight, bias = projection
        order = torch.arange(len(weight), device=weight.device)
        first = order[: self._head_dim].clone()
        order[: self._head_dim] = torch.cat((first[::2], first[1::2]))
        return weight[order], bias[order]


def modulated(rows: Tensor, change: tuple[Tensor, Tensor], evaluation: int | Tensor) -> Tensor:
    """Return the layer norm of the rows, scaled and shifted by the `change` that belongs to this
    evaluation.
    """
    scale, shift = (_at(each, evaluation) for each in change)
    return layer_norm(rows, rows.shape[-1:], scale, shift, NORM_EPSILON)


def _at(table: Tensor, evaluation: int | Tensor) -> Tensor:
    """Return one row [width] of a table [evaluations, width]."""
    return table[evaluation].view(-1)


def rotation_of(first: int, stop: int, head_dim: int, device: torch.device) -> Rotation:
    """Return the rotation for positions `first` to `stop` - 1, with base 10,000, for use in a
    `TimedLayer`.
    """
    powers = torch.arange(0, head_dim, 2, device=device).float() / head_dim
    angles = torch.arange(first, stop, device=device).float()[:, None] * (1.0 / 10_000**powers)
    angles = torch.cat((angles, angles), 1)
    return Rotation.of_rows(angles.cos(), angles.sin())
