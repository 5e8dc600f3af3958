"""The code predictor's stack (`lm.lockstep`) with fused kernels, for use in CUDA graphs.

A layer needs nine kernels per position: four products, attention, and the kernels from
`antiphon_services.lm.kernels` between them. Within a layer, the cache is ordered by position, then
by sequence, then by head. Queries, keys and values are adjacent, so a single kernel can normalize
and rotate them while it copies them from the product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from antiphon_services.lm.experts import require_silu
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.layer import head_weight
from antiphon_services.lm.products import Product
from antiphon_services.lm.rotary import Rotation


class FusedLockstep:
    """Like `antiphon_services.lm.lockstep.Lockstep`, but with fused `kernels`."""

    reads_ahead = False
    output_scale: Tensor | None = None

    def __init__(self, model: Any, sequences: int, positions: int, kernels: Kernels) -> None:
        weight: Tensor = model.norm.weight
        self.dtype, self.device, self.width = weight.dtype, weight.device, len(weight)
        self._kernels = kernels
        rotation = Rotation.of(model.rotary_emb, positions, like=weight)
        self._layers = [_FusedStep(each, kernels, rotation) for each in model.layers]
        self._norm_weight, self._epsilon = weight, float(model.norm.variance_epsilon)
        heads, head_dim = self._layers[0].heads, self._layers[0].head_dim
        size = len(self._layers), positions, sequences, heads, head_dim
        self._cache = torch.zeros(size, dtype=self.dtype, device=self.device)

    def begin(self, first: Tensor, second: Tensor) -> Tensor:
        """Start n sequences with two positions each and return the states of the second position
        [n, width].
        """
        return self._through(torch.cat((first, second)), 0, len(first))[len(first) :]

    def go_on(self, position: int, given: Tensor) -> Tensor:
        """Append `given` [n, width] as the next position of all sequences and return the states of
        this position.
        """
        return self._through(given, position, len(given))

    def found_finite(self) -> None:
        """Do nothing, because no position is read before it has been written."""

    def _through(self, rows: Tensor, start: int, count: int) -> Tensor:
        """Return the normalized states of `rows`, which belong to `count` sequences and begin at
        position `start`.

        The rows are ordered by position, and by sequence within each position.
        """
        stop = start + len(rows) // count
        normed = self._layers[0].norm(rows)
        following = [each.first_norm for each in self._layers[1:]]
        following.append((self._norm_weight, self._epsilon))
        for layer, cache, norm in zip(self._layers, self._cache, following, strict=True):
            mixed = layer.attend(normed, cache, start, stop, count)
            rows, delta = layer.leave(rows, mixed)
            rows, normed = self._kernels.add_norm(rows, delta, *norm)
        return normed


class _FusedStep:
    """A single layer that uses Hugging Face's weights."""

    def __init__(self, module: Any, kernels: Kernels, rotation: Rotation) -> None:
        attention, mlp = module.self_attn, module.mlp
        require_silu(mlp.act_fn)
        self._kernels = kernels
        self.head_dim: int = attention.head_dim
        self._queries = attention.q_proj.out_features // self.head_dim
        self._key_heads = attention.k_proj.out_features // self.head_dim
        self.heads = self._queries + 2 * self._key_heads
        self.first_norm = _norm_of(module.input_layernorm)
        self._second_norm = _norm_of(module.post_attention_layernorm)
        self._in = Product.of(attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = Product.of(attention.o_proj)
        self._up, self._down = Product.of(mlp.gate_proj, mlp.up_proj), Product.of(mlp.down_proj)
        self._scale: float = attention.scaling
        self._turns = rotation.turns
        numbers = torch.arange(self.heads, device=self._turns.device)
        self._is_turned = (numbers < self._queries + self._key_heads)[:, None]
        self._head_weight = head_weight(attention, self._queries, self._key_heads)
        self._epsilon = 0.0
        if self._head_weight is not None:
            self._epsilon = float(attention.q_norm.variance_epsilon)

    def norm(self, rows: Tensor) -> Tensor:
        """Apply the first norm."""
        weight, epsilon = self.first_norm
        return weight * torch.nn.functional.rms_norm(rows, rows.shape[-1:], eps=epsilon)

    def attend(self, normed: Tensor, cache: Tensor, start: int, stop: int, count: int) -> Tensor:
        """Return the attention output [n, heads * head_dim] for the positions from `start` to
        `stop`.
        """
        made = self._in(normed).view(stop - start, count, self.heads, self.head_dim)
        new = cache[start:stop, :count]
        turns = self._turns[start:stop, None]
        self._kernels.turn_heads_into(
            new, made, self._head_weight, turns, self._is_turned, self._epsilon
        )
        mixed = self._mix(cache[:stop, :count], new[-1])
        if stop - start == 1:
            return mixed
        # Position 0 can only attend to itself.
        values = new[0, :, self._queries + self._key_heads :]
        share = self._queries // self._key_heads
        alone = values[:, :, None].expand(-1, -1, share, -1).reshape(count, -1)
        return torch.cat((alone, mixed))

    def leave(self, rows: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the rows and the attention output. The MLP's output is returned
        separately, and the caller must add it to this sum.
        """
        rows, normed = self._kernels.add_norm(rows, self._out(mixed), *self._second_norm)
        return rows, self._down(self._kernels.gate(self._up(normed)))

    def _mix(self, seen: Tensor, last: Tensor) -> Tensor:
        """Return the attention output for the last position of each sequence."""
        count, first_key = len(last), self._queries
        asked = last[:, :first_key].view(count, self._key_heads, -1, self.head_dim)
        by_head = seen.permute(1, 2, 0, 3)
        keys = by_head[:, first_key : first_key + self._key_heads]
        values = by_head[:, first_key + self._key_heads :]
        return scaled_dot_product_attention(asked, keys, values, scale=self._scale).reshape(
            count, -1
        )


def _norm_of(module: Any) -> tuple[Tensor, float]:
    return module.weight, float(module.variance_epsilon)
