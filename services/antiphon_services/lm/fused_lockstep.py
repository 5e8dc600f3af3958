"""The code predictor's stack of `lm.lockstep` with fused kernels, for captured graphs.

Nine kernels a layer and position: four products, attention, and between them
`antiphon_services.lm.kernels`. By layer the cache holds positions, sequences and heads. Queries,
keys and values stand side by side, so that one kernel norms and rotates them on their way from the
product.
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
    """`antiphon_services.lm.lockstep.Lockstep`, by `kernels`."""

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
        """States [n, width] of the second of the two positions that n sequences begin with."""
        return self._through(torch.cat((first, second)), 0, len(first))[len(first) :]

    def go_on(self, position: int, given: Tensor) -> Tensor:
        """States of one more position of all sequences, `given` [n, width]."""
        return self._through(given, position, len(given))

    def found_finite(self) -> None:
        """Nothing is read before it is written."""

    def _through(self, rows: Tensor, start: int, count: int) -> Tensor:
        """The normed states of `rows`, those of `count` sequences at a position from `start` on, of
        each before those at the next."""
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
    """One layer, from the weights of Hugging Face's."""

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
        """The first norm alone."""
        weight, epsilon = self.first_norm
        return weight * torch.nn.functional.rms_norm(rows, rows.shape[-1:], eps=epsilon)

    def attend(self, normed: Tensor, cache: Tensor, start: int, stop: int, count: int) -> Tensor:
        """What the rows of positions `start` to `stop` see: [n, heads * head_dim]."""
        made = self._in(normed).view(stop - start, count, self.heads, self.head_dim)
        new = cache[start:stop, :count]
        turns = self._turns[start:stop, None]
        self._kernels.turn_heads_into(
            new, made, self._head_weight, turns, self._is_turned, self._epsilon
        )
        mixed = self._mix(cache[:stop, :count], new[-1])
        if stop - start == 1:
            return mixed
        # Position 0 sees itself alone.
        values = new[0, :, self._queries + self._key_heads :]
        share = self._queries // self._key_heads
        alone = values[:, :, None].expand(-1, -1, share, -1).reshape(count, -1)
        return torch.cat((alone, mixed))

    def leave(self, rows: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """The rows with attention's part, and what the MLP adds to them."""
        rows, normed = self._kernels.add_norm(rows, self._out(mixed), *self._second_norm)
        return rows, self._down(self._kernels.gate(self._up(normed)))

    def _mix(self, seen: Tensor, last: Tensor) -> Tensor:
        """What the last position of each sequence sees."""
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
