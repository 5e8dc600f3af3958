"""A decoder stack for sequences that always have the same length, such as those of the code
predictor.

All sequences of a call start together with one or two positions, and then advance by one position
at a time up to a known length. This means that all addresses are known in advance. Products write
queries, keys and values directly to the place from which attention reads them, views are created
once for each number of sequences, and nothing has to be read from the device.

The memory is ordered by layer, position, sequence, and group of query heads that share a key head.
Each entry contains the group's query heads, its key and its value, so sequences and groups form a
single dimension.

On a CPU in float32, the cost of a small number of rows depends on the number of operations. For
this reason, a norm consists of only two operations. The first one computes the length of a row to
which a number for epsilon has been appended. The second one is a division. The norms' weights are
folded into the products that follow, and the weights of the head norms are folded into the rotary
tables. Attention reads a whole number of vector registers of positions and masks the rest, because
a softmax over 12 numbers takes six times as long as one over 16. Masked positions have no weight,
but their values must be finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from antiphon_services.lm.in_place import into
from antiphon_services.lm.products import Product
from antiphon_services.lm.rotary import Rotation

# Each row is followed by padding. On a CPU, only the first padding value is nonzero.
PADDING = 16
# The number of floats in the CPU's widest vector register.
VECTOR = 16


@dataclass(frozen=True, slots=True)
class _PositionViews:
    """Views of the memory for one layer. They cover the new positions and the positions to which
    these can attend.

    A product writes to `made`. `turned` [..., share + 1, head_dim] contains its queries and keys.
    `single` is the same memory with the shape [..., share + 1, 1, head_dim], and `heads` is
    expanded to [..., share + 1, 2, head_dim]. To rotate a head, it is written to `both` twice and
    then read through `windows`: once unchanged and once starting at its second half. The products
    with `tables` are written to `parts`, which consist of `straight` and `crossed`. Their sum is
    written to `turned`.

    `queries` [n, share, head_dim], `keys` [n, head_dim, read] and `values` [n, read, head_dim] are
    the inputs of attention for the last position. n is the number of sequences multiplied by the
    number of key heads. `mask` [1, 1, read] hides positions that are read before they have been
    written and is None if there are none. The MLP's first product is written to `gated`, and `gate`
    and `up` are views of it.
    """

    made: Tensor
    turned: Tensor
    single: Tensor
    heads: Tensor
    both: Tensor
    windows: Tensor
    tables: Tensor
    parts: Tensor
    straight: Tensor
    crossed: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None
    gated: Tensor
    gate: Tensor
    up: Tensor


class Lockstep:
    """The layers and the final norm of `model`, for `sequences` sequences of up to `positions`
    positions.

    Each sequence begins with one or two positions. `model` has the same attributes as in
    `antiphon_services.lm.decoder.Decoder`. Its layers must be dense.
    """

    def __init__(self, model: Any, sequences: int, positions: int, *, begin_with: int = 2) -> None:
        weight: Tensor = model.norm.weight
        self._begin_with = begin_with
        self.dtype, self.device, self.width = weight.dtype, weight.device, len(weight)
        self._folds = self.device.type == "cpu" and self.dtype == torch.float32
        self._positions = positions
        rotation = Rotation.of(model.rotary_emb, positions, like=weight)
        self._layers = tuple(_Layer(each, rotation, folds=self._folds) for each in model.layers)
        self._norm = _RowNorm(model.norm, folds=self._folds)
        self.output_scale = self._norm.scale
        """A factor that is missing from the outputs, so the consumer must multiply its own weights
        by it. It is None if there is no such factor.
        """
        attention = model.layers[0].self_attn
        self._key_heads = attention.k_proj.out_features // attention.head_dim
        self._heads = attention.q_proj.out_features // attention.head_dim + 2 * self._key_heads
        self._head_dim: int = attention.head_dim
        self._room_for = -(-positions // VECTOR) * VECTOR if self._folds else positions
        size = len(self._layers) * self._room_for * sequences * self._heads * self._head_dim
        self._memory = torch.zeros(size, dtype=self.dtype, device=self.device)
        self._finite = True
        # Reading ahead is only used on a CPU with folded norms.
        self._masks = _masks(positions, self._room_for, self.dtype) if self._folds else ()
        padding = PADDING if self._folds else 0
        size = 2 * sequences, self.width + padding
        self._stream = torch.zeros(size, dtype=self.dtype, device=self.device)
        size = 4 * sequences * self._heads * self._head_dim
        self._room = torch.zeros(size, dtype=self.dtype, device=self.device)
        self._parts = torch.zeros_like(self._room)
        size = 2 * sequences, 2 * model.layers[0].mlp.gate_proj.out_features
        self._gated = torch.zeros(size, dtype=self.dtype, device=self.device)
        if padding:
            self._stream[:, self.width] = math.sqrt(self._norm.epsilon * self.width)
        self._places: dict[int, Sequence[Sequence[_PositionViews]]] = {}

    def begin(self, first: Tensor, second: Tensor) -> Tensor:
        """Start n sequences with two positions each and return the states of the second position
        [n, width].
        """
        self._begin()
        count = len(first)
        stream = self._stream[: 2 * count]
        rows = stream[:, : self.width]
        rows[:count].copy_(first)
        rows[count:].copy_(second)
        for layer, places in zip(self._layers, self._of(count), strict=True):
            place = places[0]
            layer.enter(rows, stream, place)
            # Position 0 can only attend to itself.
            alone = place.values[:, :1].expand_as(place.queries)
            layer.leave(rows, stream, torch.cat((alone, layer.mix(place))), place)
        return self._norm(rows[count:], stream[count:])

    def begin_one(self, first: Tensor) -> Tensor:
        """Start n sequences with one position each and return the states of this position [n,
        width].
        """
        self._begin()
        return self.go_on(0, first)

    def _begin(self) -> None:
        """Clear the memory that will be read before it is written, unless it is known to be
        finite.
        """
        if self.reads_ahead:
            if not self._finite:
                self._memory.zero_()
            self._finite = False

    def go_on(self, position: int, given: Tensor) -> Tensor:
        """Append `given` [n, width] as the next position of all sequences and return the states of
        this position.
        """
        count = given.shape[0]
        stream = self._stream[:count]
        rows = stream[:, : self.width]
        rows.copy_(given)
        for layer, places in zip(self._layers, self._of(count), strict=True):
            place = places[position + 1 - self._begin_with]
            layer.enter(rows, stream, place)
            layer.leave(rows, stream, layer.mix(place), place)
        return self._norm(rows, stream)

    @property
    def reads_ahead(self) -> bool:
        """Whether attention reads positions before they have been written. If so, the memory must
        be finite.
        """
        return self._folds

    def found_finite(self) -> None:
        """Declare that all states since `begin` are finite, which means that the memory doesn't
        have to be cleared before the next call.
        """
        self._finite = True

    def _of(self, count: int) -> Sequence[Sequence[_PositionViews]]:
        """Return the views for each layer: first those of the initial positions and then those of
        each later position.
        """
        if count not in self._places:
            self._places[count] = [self._make(layer, count) for layer in range(len(self._layers))]
        return self._places[count]

    def _make(self, layer: int, count: int) -> Sequence[_PositionViews]:
        share = self._heads // self._key_heads
        size = self._room_for * count * self._heads * self._head_dim
        memory = self._memory[layer * size : (layer + 1) * size].view(
            self._room_for, count * self._key_heads, share, self._head_dim
        )
        places = []
        for last in range(self._begin_with - 1, self._positions):
            first = last + 1 == self._begin_with == 2
            new, at = (memory[:2], slice(0, 2)) if first else (memory[last], last)
            turned = new[..., :-1, :]
            shape = (*turned.shape[:-1], 2, self._head_dim)
            both = self._room[: math.prod(shape)].view(shape)
            strides = (*both.stride()[:-2], self._head_dim // 2, 1)
            parts = self._parts[: math.prod(shape)].view(shape)
            straight, crossed = parts.unbind(-2)
            made = new.reshape(-1, self._heads * self._head_dim)
            gated = self._gated[: len(made)]
            gate, up = gated.chunk(2, dim=-1)
            read = memory if self._folds else memory[: last + 1]
            places.append(
                _PositionViews(
                    made=made,
                    turned=turned,
                    single=turned.unsqueeze(-2),
                    heads=turned.unsqueeze(-2).expand(shape),
                    both=both,
                    windows=both.as_strided(shape, strides),
                    tables=self._layers[layer].tables[at],
                    parts=parts,
                    straight=straight,
                    crossed=crossed,
                    queries=memory[last, :, :-2],
                    keys=read[:, :, -2].permute(1, 2, 0),
                    values=read[:, :, -1].transpose(0, 1),
                    mask=self._masks[last] if self._masks else None,
                    gated=gated,
                    gate=gate,
                    up=up,
                )
            )
        return places


def _masks(positions: int, room: int, dtype: torch.dtype) -> Sequence[Tensor]:
    """Return a mask [1, 1, room] for each of `positions`. It hides the positions that come
    later.
    """
    hidden = torch.arange(room) > torch.arange(positions)[:, None]
    nothing = torch.zeros(hidden.shape, dtype=dtype)
    return nothing.masked_fill_(hidden, -math.inf)[:, None, None].unbind(0)


class _RowNorm:
    """An RMS norm for rows. If `folds` is true, the outputs don't include `scale`, and the rows are
    passed together with a padded stream.
    """

    def __init__(self, module: Any, *, folds: bool) -> None:
        self.epsilon: float = module.variance_epsilon
        self._weight: Tensor = module.weight
        self._shape = self._weight.shape
        self.scale = self._weight * math.sqrt(len(self._weight)) if folds else None

    def __call__(self, rows: Tensor, stream: Tensor) -> Tensor:
        """Normalize rows [n, width]. `stream` contains the same rows with padding."""
        if self.scale is not None:
            length: Tensor = torch.linalg.vector_norm(stream, dim=-1, keepdim=True)
            return rows / length
        if self._weight.dtype == torch.float32:
            return rms_norm(rows, self._shape, self._weight, self.epsilon)
        # Like Hugging Face's code, this rounds before the weight is applied.
        return self._weight * rms_norm(rows, self._shape, None, self.epsilon)


class _Layer:
    """A single layer that uses Hugging Face's weights."""

    def __init__(self, module: Any, rotation: Rotation, *, folds: bool) -> None:
        attention = module.self_attn
        self._head_dim: int = attention.head_dim
        self._folds = folds
        self._first_norm = _RowNorm(module.input_layernorm, folds=folds)
        self._second_norm = _RowNorm(module.post_attention_layernorm, folds=folds)
        self._in = self._interleaved(attention, self._first_norm.scale)
        self._out = Product.of(attention.o_proj)
        mlp = module.mlp
        self._up = Product.of(mlp.gate_proj, mlp.up_proj, scale=self._second_norm.scale)
        self._down = Product.of(mlp.down_proj)
        self._activate = mlp.act_fn.forward
        self._scale: float = 1.0 if folds else attention.scaling
        self._epsilon: float | None = None
        if hasattr(attention, "q_norm"):
            self._epsilon = attention.q_norm.variance_epsilon
            # The length that represents epsilon. The norm divides by the hypotenuse of this value
            # and the length of a head.
            shortest = math.sqrt(self._epsilon * self._head_dim)
            self._shortest = torch.tensor(shortest, device=rotation.turns.device)
        # Separate norms round in the same way as Hugging Face's.
        self._weights: Tensor | None = None
        self.tables = self._make_tables(attention, rotation)

    def enter(self, rows: Tensor, stream: Tensor, place: _PositionViews) -> None:
        """Write the queries, keys and values of new rows to their places."""
        self._in.put(self._first_norm(rows, stream), place.made)
        if self._epsilon is None:
            place.both.copy_(place.heads)
        elif self._weights is None:
            length = torch.linalg.vector_norm(place.single, dim=-1, keepdim=True)
            torch.div(place.heads, torch.hypot(length, self._shortest), out=place.both)
        else:
            normed = rms_norm(place.turned, (self._head_dim,), None, self._epsilon)
            twice = normed.unsqueeze(-2).expand_as(place.both)
            torch.mul(twice, self._weights, out=place.both)
        torch.mul(place.windows, place.tables, out=place.parts)
        into(place.turned, torch.add, place.straight, place.crossed)

    def mix(self, place: _PositionViews) -> Tensor:
        """Return the attention output [n, share, head_dim] for the last position."""
        if place.mask is not None:
            likeness = torch.baddbmm(place.mask, place.queries, place.keys)
            return torch.bmm(likeness.softmax(-1), place.values)
        keys = place.keys.transpose(1, 2)
        return scaled_dot_product_attention(
            place.queries[None], keys[None], place.values[None], scale=self._scale
        )[0]

    def leave(self, rows: Tensor, stream: Tensor, mixed: Tensor, place: _PositionViews) -> None:
        """Complete the layer after attention. Afterwards, `rows` contains the layer's output."""
        self._out.add_to(rows, mixed.reshape(rows.shape[0], -1))
        normed = self._second_norm(rows, stream)
        if self._up.packed:
            gate, up = self._up(normed).chunk(2, dim=-1)
        else:
            self._up.put(normed, place.gated)
            gate, up = place.gate, place.up
        self._down.add_to(rows, self._activate(gate).mul_(up))

    def _interleaved(self, attention: Any, scale: Tensor | None) -> Product:
        """Return one product whose outputs are grouped by key head. Each group contains the
        queries, the key and the value.
        """
        linears = attention.q_proj, attention.k_proj, attention.v_proj
        key_heads = attention.k_proj.out_features // self._head_dim

        def by_key_head(parts: Sequence[Tensor]) -> Tensor:
            split = [each.view(key_heads, -1, *each.shape[1:]) for each in parts]
            return torch.cat(split, dim=1).flatten(0, 1)

        weight = by_key_head([each.weight for each in linears])
        biased = attention.q_proj.bias is not None
        bias = by_key_head([each.bias for each in linears]) if biased else None
        return Product(weight if scale is None else weight * scale, bias)

    def _make_tables(self, attention: Any, rotation: Rotation) -> Tensor:
        """Return the cosines and sines [positions, 1, share + 1 or 1, 2, head_dim].

        With `folds`, they include the weights of the head norms and the attention scale.
        """
        both = rotation.turns[:, None]
        share = attention.q_proj.out_features // attention.k_proj.out_features
        weights = both.new_ones(share + 1, 1, self._head_dim)
        if self._epsilon is not None:
            weights[:share] = attention.q_norm.weight
            weights[share] = attention.k_norm.weight
        if not self._folds:
            self._weights = weights
            return both
        if self._epsilon is not None:
            # The norms divide by a length instead of a mean.
            weights *= math.sqrt(self._head_dim)
        weights[:share] *= attention.scaling
        return both * torch.cat((weights, weights.roll(self._head_dim // 2, -1)), dim=-2)
