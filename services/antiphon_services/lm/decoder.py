"""A stack of decoder layers over a Hugging Face model's weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

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
    """A stack with final norm; positions are whole numbers below `max_positions`.

    `model` has `layers`, `norm` and `rotary_emb`, as Qwen's text models in transformers do.
    Of a `batch_invariant` one, each row's digits are the same in any company, in float32
    on a CPU with one thread: it fills lone rows up to `LEAST_ROWS` and reads more
    positions than there are. `exact_norms` round as Hugging Face's do; without, norms take
    fewer operations on a CPU. With `bucketing`, up to `most_rows` rows of slots go through
    by it, where they can, and by `kernels` if there are any; prompts that make a step larger have a
    forward of their own before it.
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
        # What a row reads costs on a GPU, where it buys nothing.
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
        # On a CPU asking is free.
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
        """For `append_last`: the last row of each span that is `asked` for. None where `append` is
        to be used: it saves nothing, costs a GPU operations, or all rows are needed."""
        plain = self.shape.device.type == "cpu" and self._pieces is None and self.least_rows == 1
        saves = any(each.count > 1 for each in spans) and tapped_layer < len(self._layers)
        return LastRows(cache, spans, asked) if plain and saves else None

    def order(self, span: Span) -> tuple[int, int]:
        """What spans should be sorted by: see `span_order`."""
        return span_order(span, batch_invariant=self._invariant)

    def plan(
        self, cache: KVCache, spans: Sequence[Span], beside: Sequence[Numbers] = ()
    ) -> AttentionPlan:
        """Attention of these spans' rows, which there must be room for; `beside` goes with it."""
        return AttentionPlan(cache, spans, batch_invariant=self._invariant, beside=beside)

    def append_last(
        self,
        rows: Tensor,
        plan: AttentionPlan,
        turned: Tensor | None,
        last: LastRows,
        *,
        tapped_layer: int,
    ) -> tuple[Tensor, Tensor]:
        """`append` with the states of the `last` rows alone, in the order of their spans; see
        `last_rows`."""
        positions = plan.positions if turned is None else turned
        rotation = self._rotation_at(positions)
        number = len(self._layers) - 1
        states, tapped = self._through(rows, rotation, plan.attend, number, tapped_layer)
        return self._norm(last.through(number, self._layers[-1], states, rotation, plan)), tapped

    def forward(self, rows: Tensor, rotation: Rotation, attend: AttendInLayer) -> Tensor:
        """States [n, hidden] after the final norm of `rows` [n, hidden]."""
        return self._forward(rows, rotation, attend, 0)[0]

    def append(
        self,
        rows: Tensor,
        plan: AttentionPlan,
        turned: Tensor | None = None,
        *,
        tapped_layer: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Append rows [n, hidden] to the sequences of slots; their states, and those tapped.

        `turned` are the positions that turn them where these are not their places in the
        slot: int64 [n], or [n, 3] where a row's axes differ. `tapped_layer` is numbered as
        Hugging Face's `hidden_states`: 0 is the rows as they came, n the output of layer n,
        and the last one the normed output.
        Fewer than `least_rows` are filled up for the time being. States are good until the
        next call.
        """
        graphs = self._pieces
        if graphs is not None and len(rows) > graphs.most and (parts := plan.split()) is not None:
            return self._append_parts(rows, parts, turned, tapped_layer)
        missing = max(len(rows), self.least_rows) - plan.count
        positions = plan.positions if turned is None else turned
        if missing:
            # Like the last one: what is alike takes the same experts.
            rows = _filled(rows, plan.count + missing)
            positions = _filled(positions, plan.count + missing)
        plain = positions.ndim == 1
        if self._pieces is not None and plain and len(rows) <= self._pieces.most:
            states, tapped = self._pieces.forward(rows, positions, plan.attend, tapped_layer)
        else:
            rotation = self._rotation_at(positions)
            states, tapped = self._forward(rows, rotation, plan.attend, tapped_layer)
        return states, states if tapped_layer == len(self._layers) else tapped

    def _append_parts(
        self,
        rows: Tensor,
        parts: tuple[AttentionPlan, AttentionPlan],
        turned: Tensor | None,
        tapped_layer: int,
    ) -> tuple[Tensor, Tensor]:
        """`append` in two forwards: what does not fit into graphs does not keep the rest out."""
        prompts, rest = parts
        made = []
        for part, taken in ((prompts, slice(prompts.count)), (rest, slice(prompts.count, None))):
            given = rows[taken]
            places = None if turned is None else turned[taken]
            states, tapped = self.append(given, part, places, tapped_layer=tapped_layer)
            # A graph's outputs are good until the next forward.
            made.append((states[: len(given)].clone(), tapped[: len(given)].clone()))
        (first, first_tapped), (second, second_tapped) = made
        return torch.cat((first, second)), torch.cat((first_tapped, second_tapped))

    def _rotation_at(self, positions: Tensor) -> Rotation:
        return self.rotation.at(positions).spread(self._layers[0].turned_heads)

    def _forward(
        self, rows: Tensor, rotation: Rotation, attend: AttendInLayer, tapped_layer: int
    ) -> tuple[Tensor, Tensor]:
        states, tapped = self._through(rows, rotation, attend, len(self._layers), tapped_layer)
        return self._norm(states), tapped

    def _through(
        self,
        rows: Tensor,
        rotation: Rotation,
        attend: AttendInLayer,
        layers: int,
        tapped_layer: int,
    ) -> tuple[Tensor, Tensor]:
        """The outputs of the first `layers` layers, and of the tapped one if it is among them."""
        tapped = rows
        for index, layer in enumerate(self._layers[:layers]):
            rows = layer.forward(rows, rotation, partial(attend, index))
            if index + 1 == tapped_layer:
                tapped = rows
        return rows, tapped


def _filled(rows: Tensor, count: int) -> Tensor:
    """`count` rows: the last one again and again."""
    if len(rows) == count:
        return rows
    return torch.cat((rows, rows[-1:].expand(count - len(rows), *rows.shape[1:])))
