"""One layer of the diffusion transformer, from the weights of a Hugging Face module.

Layer norms whose scale and shift follow from the time, attention over blocks, a dense MLP. Only
the first head's queries and keys are turned by their positions, in the interleaved order of the
checkpoint; here their rows are put in the order of `services.lm.rotary` when loaded, which
changes no product of a query and a key.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention, silu

from services.lm.rotary import Rotation

NORM_EPSILON = 1e-6


class SeenBlocks(Protocol):
    """What the rows of each block see in a layer."""

    def seen(
        self, own: Tensor, evaluation: Any, looking: int | None, *, ahead: bool
    ) -> tuple[Tensor, Tensor | None]:
        """See `services.qwen2_5_omni.token2wav.blocks.BlockPlan.seen`."""


class FlowLayer:
    """`module` is Hugging Face's; `embedding` [evaluations, width] that of the times.

    `looking` is the layer's number among those that look at the block behind; None for others.
    """

    def __init__(self, module: Any, embedding: Tensor, looking: int | None) -> None:
        attention = module.attn
        self.looking = looking
        self._ahead = bool(module.look_ahead_block)
        self._heads: int = attention.heads
        self._head_dim = attention.inner_dim // attention.heads
        changes = module.attn_norm.linear(silu(embedding)).chunk(6, dim=1)
        shift, scale, self._gate, second_shift, second_scale, self._second_gate = changes
        self._first_norm = (1 + scale, shift)
        self._second_norm = (1 + second_scale, second_shift)
        turned = [self._straighten(each) for each in (attention.to_q, attention.to_k)]
        weights, biases = zip(*turned, (attention.to_v.weight, attention.to_v.bias), strict=True)
        self._in = (torch.cat(weights), torch.cat(biases))
        self._out = (attention.to_out[0].weight, attention.to_out[0].bias)
        self._up = (module.ff.ff[0].weight, module.ff.ff[0].bias)
        self._down = (module.ff.ff[3].weight, module.ff.ff[3].bias)

    def forward(
        self, rows: Tensor, evaluation: int | Tensor, plan: SeenBlocks, rotation: Rotation
    ) -> Tensor:
        """Rows [HALVES * blocks, frames, width] after the layer."""
        mixed = self._attend(_norm(rows, self._first_norm, evaluation), evaluation, plan, rotation)
        rows = torch.addcmul(rows, at(self._gate, evaluation), mixed)
        normed = _norm(rows, self._second_norm, evaluation)
        inner = gelu(linear(normed, *self._up), approximate="tanh")
        return torch.addcmul(rows, at(self._second_gate, evaluation), linear(inner, *self._down))

    def _attend(
        self, normed: Tensor, evaluation: int | Tensor, plan: SeenBlocks, rotation: Rotation
    ) -> Tensor:
        blocks, frames, _ = normed.shape
        heads = linear(normed, *self._in).view(blocks, frames, 3, self._heads, self._head_dim)
        first = heads[:, :, :2, 0]
        rotation.apply(first, out=first)
        own = heads[:, :, 1:].transpose(1, 2)
        seen, mask = plan.seen(own, evaluation, self.looking, ahead=self._ahead)
        keys, values = seen.transpose(2, 3).unbind(1)
        queries = heads[:, :, 0].transpose(1, 2)
        mixed = scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return linear(mixed.transpose(1, 2).flatten(2), *self._out)

    def _straighten(self, projection: Any) -> tuple[Tensor, Tensor]:
        """Weight and bias with the first head's even rows before its odd ones."""
        order = torch.arange(projection.out_features, device=projection.weight.device)
        first = order[: self._head_dim].clone()
        order[: self._head_dim] = torch.cat((first[::2], first[1::2]))
        return projection.weight[order], projection.bias[order]


def at(table: Tensor, evaluation: int | Tensor) -> Tensor:
    """A row [width] of a table [evaluations, width]: by a number, or by one on the device [1]."""
    return table[evaluation].view(-1)


def _norm(rows: Tensor, change: tuple[Tensor, Tensor], evaluation: int | Tensor) -> Tensor:
    scale, shift = (at(each, evaluation) for each in change)
    return layer_norm(rows, rows.shape[-1:], scale, shift, NORM_EPSILON)
