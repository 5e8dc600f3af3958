"""A decoder layer that uses the weights of a Hugging Face module.

The layer consists of pre-norm grouped-query attention with rotary positions and optional norms for
queries and keys, followed by a pre-norm MLP, which is either dense or a mixture of experts. With
only a few rows, the cost of a layer depends on the number of operations. Queries, keys and values
are therefore computed as one product and are normalized and rotated together. The gate and up
projections of a dense MLP are also one product. The arithmetic and the rounding are the same as in
transformers' implementation of Qwen's layers.

Rows from many sequences are processed together. The argument `attend` determines which other rows a
row can attend to. All other operations treat each row separately.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from antiphon_services.lm.experts import Dense, Mlp, Sparse, require_silu
from antiphon_services.lm.group_limited import GroupLimited
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.products import Product
from antiphon_services.lm.rotary import Rotation

# A function that receives the queries [n, heads, head_dim] and the keys and values [n, 2 * key
# heads, head_dim] of new rows, and returns the attention output [n, heads, head_dim].
Attend = Callable[[Tensor, Tensor], Tensor]


class Norm:
    """An RMS norm like Qwen's. It normalizes in float32, converts the result back, and then applies
    the weight.

    If `exact` is true, results on a CPU are bit-identical to Hugging Face's. Otherwise the norm
    needs fewer operations, and its float32 results differ slightly.
    """

    def __init__(self, weight: Tensor, epsilon: float, *, exact: bool) -> None:
        self.weight = weight
        self.epsilon = epsilon
        self._added = torch.tensor(epsilon, device=weight.device)
        self._share = 1.0 / weight.shape[-1]
        self._norm = self._rounded
        if weight.dtype == torch.float32 and not exact:
            self._norm = self._quickly if weight.device.type == "cpu" else self._whole

    @classmethod
    def of(cls, module: Any, *, exact: bool) -> Norm:
        """Return the norm for a Hugging Face module."""
        return cls(module.weight, module.variance_epsilon, exact=exact)

    def __call__(self, rows: Tensor) -> Tensor:
        """Normalize over the last dimension. The shape and dtype don't change."""
        return self._norm(rows)

    def twice(self, rows: Tensor) -> Tensor:
        """Normalize rows [n, heads, width]. Each result is written twice, which gives a contiguous
        tensor [n, heads, 2, width].
        """
        normed = rms_norm(rows, rows.shape[-1:], eps=self.epsilon).unsqueeze(-2)
        both = rows.new_empty(*rows.shape[:-1], 2, rows.shape[-1])
        return torch.mul(self.weight.unsqueeze(-2), normed.expand_as(both), out=both)

    def _rounded(self, rows: Tensor) -> Tensor:
        return self.weight * rms_norm(rows, rows.shape[-1:], eps=self.epsilon)

    def _whole(self, rows: Tensor) -> Tensor:
        if self.weight.ndim > 1:
            return self._rounded(rows)
        return rms_norm(rows, self.weight.shape, self.weight, self.epsilon)

    def _quickly(self, rows: Tensor) -> Tensor:
        """Normalize a small number of rows. On a CPU, this takes half the time of `rms_norm`, which
        consists of several operations.
        """
        length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        scale = torch.addcmul(self._added, length, length, value=self._share).rsqrt_()
        return (rows * scale).mul_(self.weight)


class Layer:
    """A decoder layer. `module` is a Hugging Face module. Its attention and dense MLP are not kept,
    because the layer uses joined products of their weights instead.

    `batch_invariant` and `exact_norms` have the same meaning as in
    `antiphon_services.lm.decoder.Decoder`.
    """

    def __init__(self, module: Any, *, batch_invariant: bool, exact_norms: bool) -> None:
        attention = module.self_attn
        self._head_dim: int = attention.head_dim
        self.queries: int = attention.q_proj.out_features // self._head_dim
        self.key_heads: int = attention.k_proj.out_features // self._head_dim
        self._first_norm = Norm.of(module.input_layernorm, exact=exact_norms)
        self._second_norm = Norm.of(module.post_attention_layernorm, exact=exact_norms)
        self._in = Product.of(attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = Product.of(attention.o_proj)
        normed = hasattr(attention, "q_norm")
        self._head_norm = self._make_head_norm(attention, exact_norms) if normed else None
        self._mlp = _make_mlp(module.mlp, by_loop=batch_invariant, exact=exact_norms)
        # In bfloat16, Hugging Face's rounding is visible as well.
        self._fused = not exact_norms and attention.q_proj.weight.dtype == torch.float32
        # This needs fewer operations, which determine the cost on a GPU. On a CPU, it would have to
        # write twice as much.
        self._doubles = not self._fused and attention.q_proj.weight.device.type != "cpu"
        self.asks_device = self._mlp.asks_device

    def forward(
        self, rows: Tensor, rotation: Rotation, attend: Attend, kinds: Tensor | None = None
    ) -> Tensor:
        """Map n new rows [n, hidden] to the layer's output. `kinds` has the same meaning as in
        `lm.experts.Mlp`.
        """
        return self.leave(rows, attend(*self.split(self.enter(rows, rotation))), kinds)

    @property
    def turned_heads(self) -> int:
        """The number of heads that are rotated."""
        return self.queries + self.key_heads

    def enter(self, rows: Tensor, rotation: Rotation) -> Tensor:
        """Return the queries, keys and values as one tensor [n, queries + 2 * key heads,
        head_dim].
        """
        heads = self._in(self._first_norm(rows)).view(rows.shape[0], -1, self._head_dim)
        turned = heads[:, : self.turned_heads]
        if self._head_norm is not None and self._doubles:
            rotation.apply_to_both(self._head_norm.twice(turned), out=turned)
            return heads
        normed = turned if self._head_norm is None else self._head_norm(turned)
        rotation.apply(normed, out=turned, fused=self._fused)
        return heads

    def split(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Split the result of `enter` into the arguments of `Attend`."""
        return heads[:, : self.queries], heads[:, self.queries :]

    def leave(self, rows: Tensor, mixed: Tensor, kinds: Tensor | None = None) -> Tensor:
        """Return the layer's output, given the attention output [n, queries, head_dim]."""
        mixed = mixed.reshape(rows.shape[0], -1)
        if self._fused:
            rows = self._out.plus(mixed, rows)
            return self._mlp.plus(self._second_norm(rows), rows, kinds)
        rows = rows + self._out(mixed)
        return rows + self._mlp(self._second_norm(rows), kinds)

    def _make_head_norm(self, attention: Any, exact: bool) -> Norm:
        """Return a single norm that applies to both queries and keys, each with its own weights."""
        q_weight, k_weight = attention.q_norm.weight, attention.k_norm.weight
        per_head = (q_weight.expand(self.queries, -1), k_weight.expand(self.key_heads, -1))
        return Norm(torch.cat(per_head), attention.q_norm.variance_epsilon, exact=exact)


def _make_mlp(module: Any, *, by_loop: bool, exact: bool) -> Mlp:
    """Return the MLP that computes with the weights of a module."""
    if hasattr(module, "gate_proj"):
        return Dense(module)
    if hasattr(module, "gates"):
        return GroupLimited(module, by_loop=by_loop)
    return Sparse(module, by_loop=by_loop, exact=exact)


class FusedLayer(Layer):
    """A layer that uses fused `kernels` for rows in graphs. All other rows use the operations of
    `Layer`.
    """

    def __init__(
        self, module: Any, kernels: Kernels, *, batch_invariant: bool, exact_norms: bool
    ) -> None:
        super().__init__(module, batch_invariant=batch_invariant, exact_norms=exact_norms)
        attention, mlp = module.self_attn, module.mlp
        require_silu(mlp.act_fn if hasattr(mlp, "act_fn") else mlp.experts.act_fn)
        self._kernels = kernels
        self._norm_weights = (
            (module.input_layernorm.weight, float(module.input_layernorm.variance_epsilon)),
            (
                module.post_attention_layernorm.weight,
                float(module.post_attention_layernorm.variance_epsilon),
            ),
        )
        heads = self.queries + 2 * self.key_heads
        device = attention.q_proj.weight.device
        self._is_turned = (torch.arange(heads, device=device) < self.turned_heads)[:, None]
        self._head_weight = head_weight(attention, self.queries, self.key_heads)
        self._head_epsilon = 0.0
        if self._head_weight is not None:
            self._head_epsilon = float(attention.q_norm.variance_epsilon)

    def enter_fused(
        self, rows: Tensor, delta: Tensor | None, rotation: Rotation, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the sum of `rows` and the previous layer's `delta`, and the result of `enter` for
        this sum.
        """
        if delta is None:
            normed = self._first_norm(rows)
        else:
            rows, normed = self._kernels.add_norm(rows, delta, *self._norm_weights[0])
        heads = self._in(normed).view(rows.shape[0], -1, self._head_dim)
        return rows, self._kernels.turn_heads(
            heads,
            self._head_weight,
            rotation.turns,
            positions,
            self._is_turned,
            self._head_epsilon,
        )

    def leave_fused(self, rows: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of `rows` and the attention output, and separately return the MLP's
        output. The sum of these two results is the result of `leave`.
        """
        delta = self._out(mixed.reshape(rows.shape[0], -1))
        rows, normed = self._kernels.add_norm(rows, delta, *self._norm_weights[1])
        return rows, self._mlp.fused(normed, self._kernels)


def head_weight(attention: Any, queries: int, key_heads: int) -> Tensor | None:
    """Return the weights [heads, head_dim] of the norms for queries and keys, with ones for the
    values, or None if heads aren't normalized.
    """
    if not hasattr(attention, "q_norm"):
        return None
    q_weight, k_weight = attention.q_norm.weight, attention.k_norm.weight
    ones = torch.ones_like(k_weight).expand(key_heads, -1)
    return torch.cat((q_weight.expand(queries, -1), k_weight.expand(key_heads, -1), ones))
