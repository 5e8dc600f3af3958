"""Exact streaming decode: per session a state, and each frame decoded once.

Every layer of such a vocoder is causal, so a session carries each layer's own past and
nothing is decoded twice: the samples of any split of the frames, joined, are those of the
model's `forward` over all of them, whoever shares the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from antiphon.errors import FailedPrecondition
from antiphon.transport.device_edge import on_device
from antiphon.values.chunk import Tensor as Array
from antiphon_services.vocoder.batch import Batch, Level, Members, StreamStates, numbers_of
from antiphon_services.vocoder.kernels import Linear
from antiphon_services.vocoder.layers import (
    ConvNeXt,
    Pointwise,
    ResidualUnit,
    StreamLayer,
    causal_convolution,
    upsampling,
)
from antiphon_services.vocoder.transformer import SlidingTransformer


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Frames that follow on those that the slot has seen: uint16 [n, groups], n at least 1."""

    slot: int
    codes: Array


# Decodes frames, int64 [n, frames, groups], of as many members: float [n, samples or more].
Run = Callable[[Array, Members], Tensor]


# Embeds codes int64 [batch, frames, groups]: [batch, frames, width].
EmbedFrames = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Vocoder:
    """A causal vocoder: what embeds its frames, and the modules behind it in their order.

    A frame has `groups` codes, each below `entries`. A module may be a block of others; those
    that can be streamed are transformers' causal ones, which its models name after themselves,
    and are told by their parts.
    """

    groups: int
    entries: int
    embed: EmbedFrames
    modules: Sequence[nn.Module]


class StreamDecoder:
    """Decodes any number of sessions frame by frame.

    Immutable after construction: all that changes is in a `StreamStates`. Keeps its own
    layout of the weights, and of the modules no more than the small layers.
    Construction raises `FailedPrecondition` for a layer that cannot be streamed.
    """

    def __init__(self, vocoder: Vocoder) -> None:
        with torch.no_grad():
            self._layers, self._level = _layers_of(vocoder.modules)
        weight = next(vocoder.modules[0].parameters())
        self._dtype, self.device = weight.dtype, weight.device
        self._embed = vocoder.embed
        self.groups, self.entries = vocoder.groups, vocoder.entries
        self.samples_per_frame = self._level.rate

    @property
    def state_bytes(self) -> int:
        """Bytes that a session's state takes; the same at any length of stream."""
        shapes = [layer.state_shapes for layer in self._layers]
        return numbers_of(shapes) * self._dtype.itemsize

    def samples(self, frames: int) -> int:
        """How many samples the first `frames` frames of a stream give."""
        return self._level.rows(frames)

    def new_states(self, slots: int) -> StreamStates:
        """Room for the states of that many sessions; reset a slot before its first use."""
        shapes = [layer.state_shapes for layer in self._layers]
        return StreamStates(shapes, slots, self._dtype, self.device)

    @torch.inference_mode()
    def decode(self, states: StreamStates, pieces: Sequence[StreamPiece]) -> list[Tensor]:
        """What each piece adds, in host memory: float [m] in [-1, 1], m may be 0."""
        rows, spans = self.advance(states, pieces)
        return [row[span] for row, span in zip(rows.cpu(), spans, strict=True)]

    @torch.inference_mode()
    def advance(
        self, states: StreamStates, pieces: Sequence[StreamPiece], run: Run | None = None
    ) -> tuple[Tensor, list[slice]]:
        """A row of samples for each piece, float [batch, n] in [-1, 1] on the decoder's
        device, and which of them the piece adds; that may be none.

        No two pieces have a slot in common, and codes are below `entries`: the caller has
        checked. Working memory grows with the longest piece times the number of pieces.
        After an exception all states are as they were. `run` may call `forward` in a way
        of its own.
        """
        lengths = [len(piece.codes) for piece in pieces]
        members = Members(states, [piece.slot for piece in pieces], lengths)
        codes = np.zeros((len(pieces), max(lengths), self.groups), dtype=np.int64)
        for row, piece in zip(codes, pieces, strict=True):
            row[: len(piece.codes)] = piece.codes
        rows = (run or partial(self.run, states))(codes, members)
        spans = []
        for seen, length in zip(members.seen, lengths, strict=True):
            end = length * self.samples_per_frame
            added = self.samples(int(seen) + length) - self.samples(int(seen))
            spans.append(slice(end - added, end))
        states.frames[members.slots] += members.lengths
        return rows, spans

    def forward(self, states: StreamStates, batch: Batch, codes: Tensor) -> Tensor:
        """The samples of frames int64 [batch, frames, groups]: float [batch, n]; writes states."""
        x = self._embed(codes)
        for layer, past in zip(self._layers, states.layers, strict=True):
            x = layer.advance(batch, past, x)
        rows = x.flatten(1).clamp_(min=-1, max=1)
        batch.commit()
        return rows

    def run(self, states: StreamStates, codes: Array, members: Members) -> Tensor:
        """A `Run` for these states, with what the host knows of the members."""
        batch = Batch(on_device(members.numbers, self.device), members)
        return self.forward(states, batch, on_device(codes, self.device))


def _layers_of(modules: Sequence[nn.Module]) -> tuple[list[StreamLayer], Level]:
    """The streaming form of these modules, and the level behind them."""
    parts: list[Any] = []
    for each in modules:
        block = getattr(each, "block", None)
        parts += block if isinstance(block, nn.ModuleList) else [each]
    layers: list[StreamLayer] = []
    level, act = Level(), None
    for part in parts:
        match part:
            # Each SnakeBeta stands before a convolution that needs its input in a new place.
            case nn.Module(alpha=Tensor(), beta=Tensor()) if act is None:
                act = part
                continue
            case nn.Module(conv=nn.Conv1d()):
                layers.append(causal_convolution(part, level, act))
            case nn.Module(conv=nn.ConvTranspose1d()):
                layer, level = upsampling(part, level, act)
                layers.append(layer)
            case nn.Module(dwconv=nn.Module()) if act is None:
                layers.append(ConvNeXt(part, level))
            case nn.Module(act1=nn.Module(), conv1=nn.Module()) if act is None:
                layers.append(ResidualUnit(part, level))
            case nn.Module(layers=nn.ModuleList()) if act is None and level == Level():
                layers.append(SlidingTransformer(part))
            case nn.Linear() if act is None:
                layers.append(Pointwise(Linear(part.weight, part.bias)))
            case _:
                raise FailedPrecondition(f"vocoder: cannot stream a {type(part).__name__}")
        act = None
    return layers, level
