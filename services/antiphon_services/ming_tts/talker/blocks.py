"""The transformer of the flow head and the aggregator.

It uses RMS normalization and full attention. All heads are rotated, and the original weights rotate
queries and keys in interleaved pairs. `antiphon_services.lm.rotary` rotates halves instead, so the
rows of the weights are reordered when the model is loaded. This does not change the product of a
query and a key.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, rms_norm, scaled_dot_product_attention

from antiphon_services.flow.layer import Affine, rotation_of
from antiphon_services.lm.rotary import Rotation

NORM_EPSILON = 1e-6


class RmsTransformer:
    """The transformer of a module that has `blocks`, `heads` and `final_layer`.

    `rows` is the number of rows in a sequence.
    """

    def __init__(self, module: Any, rows: int) -> None:
        heads = int(module.heads)
        width = int(module.x_embedder.out_features)
        self._blocks = [_RmsBlock(each, heads) for each in module.blocks]
        self._norm: Tensor = module.final_layer.norm_final.weight
        self._out = affine(module.final_layer.linear)
        turns = rotation_of(0, rows, width // heads, self._norm.device).turns
        self._rotation = Rotation(turns.to(self._norm.dtype))

    def forward(self, rows: Tensor, outputs: slice) -> Tensor:
        """Return the outputs at the given rows of sequences with shape [sequences, rows, width]."""
        for block in self._blocks:
            rows = block.forward(rows, self._rotation)
        normed = rms_norm(rows[:, outputs], self._norm.shape, self._norm, NORM_EPSILON)
        return linear(normed, *self._out)


class _RmsBlock:
    def __init__(self, module: Any, heads: int) -> None:
        attention = module.attn
        self._heads = heads
        self._norm: Tensor = module.norm1.weight
        self._mlp_norm: Tensor = module.norm2.weight
        queries, keys = (_halved(each, heads) for each in (attention.to_q, attention.to_k))
        parts = (queries, keys, affine(attention.to_v))
        self._in = (torch.cat([each[0] for each in parts]), torch.cat([each[1] for each in parts]))
        self._out = affine(attention.to_out[0])
        self._up, self._down = affine(module.mlp.ff["0"][0]), affine(module.mlp.ff["2"])

    def forward(self, rows: Tensor, rotation: Rotation) -> Tensor:
        """Apply the block to rows of shape [sequences, n, width]."""
        rows = rows + self._attend(
            rms_norm(rows, self._norm.shape, self._norm, NORM_EPSILON), rotation
        )
        normed = rms_norm(rows, self._mlp_norm.shape, self._mlp_norm, NORM_EPSILON)
        return rows + linear(gelu(linear(normed, *self._up), approximate="tanh"), *self._down)

    def _attend(self, normed: Tensor, rotation: Rotation) -> Tensor:
        sequences, count, width = normed.shape
        size = width // self._heads
        heads = linear(normed, *self._in).view(sequences, count, 3 * self._heads, size)
        turned = rotation.apply(heads[:, :, : 2 * self._heads].contiguous())
        queries, keys = turned.transpose(1, 2).chunk(2, 1)
        values = heads[:, :, 2 * self._heads :].transpose(1, 2)
        mixed = scaled_dot_product_attention(queries, keys, values)
        return linear(mixed.transpose(1, 2).flatten(2), *self._out)


def affine(module: nn.Linear) -> Affine:
    """Return the weight and the bias of a linear layer."""
    return module.weight, module.bias


def _halved(module: nn.Linear, heads: int) -> Affine:
    """Reorder a projection so that the even rows of each head precede the odd rows."""
    weight, bias = affine(module)
    order = torch.arange(len(weight), device=weight.device).view(heads, -1, 2)
    order = order.transpose(1, 2).reshape(-1)
    return weight[order], bias[order]
