"""A stack of decoder layers that uses the weights of a Hugging Face model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from antiphon_services.lm.attention import AttentionPlan, Numbers, Span, span_order
from antiphon_services.lm.experts import LEAST_ROWS
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.kv_cache import CacheShape, KVCache
from antiphon_services.lm.last_rows import LastRows
from antiphon_services.lm.layer import FusedLayer, Layer, Norm
from antiphon_services.lm.pieces import AttendInLayer, FusedPieces, Pieces
from antiphon_services.lm.rotary import Rotation


class Decoder:
    """A stack of layers with a final norm. It supports positions below `max_positions`.

    `model` has the attributes `layers`, `norm` and `rotary_emb`, like Qwen's text models in
    transformers.

    If `batch_invariant` is true, a row's result is bit-identical in every batch, provided that the
    computation uses float32 on a CPU with one thread. To achieve this, the decoder pads single rows
    to `LEAST_ROWS` rows and reads more positions than necessary. If `exact_norms` is true, the
    norms round like Hugging Face's. Otherwise they need fewer operations on a CPU.

    If `bucketing` is given, up to `most_rows` rows run in buckets where this is possible. If
    `kernels` is given, the operations in the buckets are fused. If prompts would make a step larger
    than `most_rows`, they are computed in a separate forward pass that comes first.
    """

    def __init__(
        self,
        model: Any,
        max_positions: int,
        *,
        batch_invariant: bool,
        exact_norms: bool,
        bucketing: Bucketing | None = None,
        most_rows: int = 0,
        kernels: Kernels | None = None,
    ) -> None:
        weight: Tensor = model.norm.weight
        # On a GPU, reading more positions has a cost but no benefit.
        self._invariant = batch_invariant and weight.device.type == "cpu"
        self.least_rows = LEAST_ROWS if batch_invariant else 1
        rules = {"batch_invariant": batch_invariant, "exact_norms": exact_norms}
        self._layers: tuple[Layer, ...] = tuple(
            FusedLayer(module, kernels, **rules) if kernels else Layer(module, **rules)
            for module in model.layers
        )
        self._kernels = kernels
        self._norm = Norm.of(model.norm, exact=exact_norms)
        self.rotation = Rotation.of(model.rotary_emb, max_positions, like=weight)
        attention = model.layers[0].self_attn
        self.shape = CacheShape(
            layers=len(self._layers),
            key_heads=self._layers[0].key_heads,
            head_dim=attention.head_dim,
            scale=attention.scaling,
            dtype=weight.dtype,
            device=weight.device,
        )
        self.asks_device = any(layer.asks_device for layer in self._layers)
        # On a CPU, reading values doesn't cause a wait.
        fit = weight.device.type == "cpu" or not self.asks_device
        self._pieces = self._cut(len(weight), most_rows, bucketing) if bucketing and fit else None

    def _cut(self, width: int, most_rows: int, bucketing: Bucketing) -> Pieces:
        given: Any = {
            "width": width,
            "least": self.least_rows,
            "most": most_rows,
            "bucketing": bucketing,
        }
        fused = [each for each in self._layers if isinstance(each, FusedLayer)]
        if self._kernels is None:
            return Pieces(self._layers, self._norm, self.rotation, self.shape, **given)
        return FusedPieces(fused, self._norm, self._kernels, self.rotation, self.shape, **given)

    def last_rows(
        self, cache: KVCache, spans: Sequence[Span], asked: Sequence[bool], *, tapped_layer: int
    ) -> LastRows | None:
        """Return the last row of each span that is marked in `asked`, for use with `append_last`.

        Returns None if `append` must be used instead. `append_last` only saves time on a CPU,
        without buckets, and if at least one span has several rows. It can't be used if the last
        layer is tapped.
        """
        plain = self.shape.device.type == "cpu" and self._pieces is None and self.least_rows == 1
        saves = any(each.count > 1 for each in spans) and tapped_layer < len(self._layers)
        return LastRows(cache, spans, asked) if plain and saves else None

    def order(self, span: Span) -> tuple[int, int]:
        """Return the span's sort key. See `span_order`."""
        return span_order(span, batch_invariant=self._invariant)

    def plan(
        self, cache: KVCache, spans: Sequence[Span], beside: Sequence[Numbers] = ()
    ) -> AttentionPlan:
        """Return the attention plan for these spans. The cache must have enough space for them, and
        `beside` is passed on to `AttentionPlan`.
        """
        return AttentionPlan(cache, spans, batch_invariant=self._invariant, beside=beside)

    def append_last(
        self,
        rows: Tensor,
        plan: AttentionPlan,
        turned: Tensor | None,
        last: LastRows,
        *,
        tapped_layer: int,
        kinds: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Like `append`, but only return the states of the rows in `last`, in the order of their
        spans.

        The kind of these rows must be 0. This is the case for all rows from which an ID is sampled,
        because a prompt never ends with a recording or an image.
        """
        positions = plan.positions if turned is None else turned
        kinds = _of_all(kinds, plan.count)
        rotation = self._rotation_at(positions)
        number = len(self._layers) - 1
        states, tapped = self._through(rows, rotation, plan.attend, number, tapped_layer, kinds)
        made = last.through(number, self._layers[-1], states, rotation, plan)
        return self._norm(made), tapped

    def forward(self, rows: Tensor, rotation: Rotation, attend: AttendInLayer) -> Tensor:
        """Return the states [n, hidden] of `rows` [n, hidden] after the final norm."""
        return self._forward(rows, rotation, attend, 0, None)[0]

    def append(
        self,
        rows: Tensor,
        plan: AttentionPlan,
        turned: Tensor | None = None,
        *,
        tapped_layer: int = 0,
        kinds: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Append rows [n, hidden] to the sequences in the slots and return their states and the
        tapped states. The states are valid until the next call.

        `turned` contains the rotary positions if they differ from the positions in the slot. Its
        shape is [n], or [n, 3] if a row has different positions on the three axes (int64).
        `tapped_layer` is an index into Hugging Face's `hidden_states`: 0 is the input, n is the
        output of layer n, and the last index is the output of the norm. `kinds` (int64 [k]) has
        the same meaning as in `lm.experts.Mlp` for the first k rows. The kind of all other rows is
        0. If there are fewer than `least_rows` rows, they are padded.
        """
        graphs = self._pieces
        if graphs is not None and len(rows) > graphs.most and (parts := plan.split()) is not None:
            return self._append_parts(rows, parts, turned, tapped_layer, kinds)
        kinds = _of_all(kinds, plan.count)
        missing = max(len(rows), self.least_rows) - plan.count
        positions = plan.positions if turned is None else turned
        if missing:
            # The padding repeats the last row, because equal rows are routed to the same experts.
            rows = _filled(rows, plan.count + missing)
            positions = _filled(positions, plan.count + missing)
            kinds = None if kinds is None else _filled(kinds, plan.count + missing)
        # The buckets have no input for the kinds of rows.
        plain = positions.ndim == 1 and kinds is None
        if self._pieces is not None and plain and len(rows) <= self._pieces.most:
            states, tapped = self._pieces.forward(rows, positions, plan.attend, tapped_layer)
        else:
            rotation = self._rotation_at(positions)
            states, tapped = self._forward(rows, rotation, plan.attend, tapped_layer, kinds)
        return states, states if tapped_layer == len(self._layers) else tapped

    def _append_parts(
        self,
        rows: Tensor,
        parts: tuple[AttentionPlan, AttentionPlan],
        turned: Tensor | None,
        tapped_layer: int,
        kinds: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Like `append`, but in two forward passes, so that single rows can still use graphs if the
        step also contains a long prompt.
        """
        prompts, rest = parts
        made = []
        for part, taken in ((prompts, slice(0, prompts.count)), (rest, slice(prompts.count, None))):
            given = rows[taken]
            places = None if turned is None else turned[taken]
            # The second part usually consists of words, and can then use graphs.
            of_part = None if kinds is None or len(kinds) <= taken.start else kinds[taken]
            states, tapped = self.append(
                given, part, places, tapped_layer=tapped_layer, kinds=of_part
            )
            # The outputs of a graph are only valid until the next forward pass.
            made.append((states[: len(given)].clone(), tapped[: len(given)].clone()))
        (first, first_tapped), (second, second_tapped) = made
        return torch.cat((first, second)), torch.cat((first_tapped, second_tapped))

    def _rotation_at(self, positions: Tensor) -> Rotation:
        return self.rotation.at(positions).spread(self._layers[0].turned_heads)

    def _forward(
        self,
        rows: Tensor,
        rotation: Rotation,
        attend: AttendInLayer,
        tapped_layer: int,
        kinds: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        layers = len(self._layers)
        states, tapped = self._through(rows, rotation, attend, layers, tapped_layer, kinds)
        return self._norm(states), tapped

    def _through(
        self,
        rows: Tensor,
        rotation: Rotation,
        attend: AttendInLayer,
        layers: int,
        tapped_layer: int,
        kinds: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the output of the first `layers` layers, and also the tapped layer's output if
        that layer is among them.
        """
        tapped = rows
        for index, layer in enumerate(self._layers[:layers]):
            rows = layer.forward(rows, rotation, partial(attend, index), kinds)
            if index + 1 == tapped_layer:
                tapped = rows
        return rows, tapped


def _of_all(kinds: Tensor | None, count: int) -> Tensor | None:
    """Return the kinds of `count` rows, given those of the first ones."""
    if kinds is None or len(kinds) == count:
        return kinds
    return pad(kinds, (0, count - len(kinds)))


def _filled(rows: Tensor, count: int) -> Tensor:
    """Return `count` rows. The last row is repeated if necessary."""
    if len(rows) == count:
        return rows
    return torch.cat((rows, rows[-1:].expand(count - len(rows), *rows.shape[1:])))
