"""Exact streaming decoding: each frame is decoded once, with a fixed state per session.

The problem: codec frames arrive a few at a time and audio must leave at once. Decoding all frames
again for each chunk costs quadratic time. Decoding windows with some context costs the context
every time, and is still not exact: joints are audible, and results depend on how frames were
chunked.

The vocoders here are causal: every layer's output at a row depends on that row and earlier ones. So
each layer keeps exactly the inputs that later rows will read:

- a convolution keeps the last (kernel - 1) * dilation rows of its input (`CausalConvolution`);
- a transposed convolution keeps the last input, if its inputs overlap (`Upsampling`);
- a transformer with a window of w frames keeps rotated keys and values of w - 1 frames
  (`SlidingTransformer`).

The samples of any chunking, concatenated, equal the model's `forward` over all frames, whichever
sessions share the calls. The state has the same size for any length of stream (`state_bytes`).

One call, from frames to samples:

    VocoderEngine.step         choose frames of many segments, bounded by `DecodePace`
    StreamDecoder.advance      pad the pieces to one shape; `Members` has slots and lengths
    Run                        call `forward` directly, or replay it as a CUDA graph (`Buckets`)
    StreamDecoder.forward      embed codes, then for each layer:
      StreamLayer.advance        state + new rows -> outputs; record the new state in `Batch`
    Batch.commit               write all new states at once

Nothing is written before `commit`. So a call that fails for one session changes none, and the
engine repeats it for each session separately (`antiphon_services.stage.isolation.together`).

What is not pretty. First, a transposed convolution yields no rows for a stream's first input, so
sessions at their start would have other shapes than the rest. They get unreal rows instead, which
`Batch.zero_start` zeroes at every layer that could read them; `Level.start` counts them. Second,
the modules come from transformers, which copies a class per model. They are recognized by their
parts (`_layers_of`), not by class.
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
    """Frames that follow those the slot has seen: uint16 [n, groups], n at least 1."""

    slot: int
    codes: Array


# Decodes frames, int64 [n, frames, groups], of n members: float [n, samples or more].
Run = Callable[[Array, Members], Tensor]


# Embeds codes int64 [batch, frames, groups]: [batch, frames, width].
EmbedFrames = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Vocoder:
    """A causal vocoder: the embedding of its frames, and its modules in order.

    A frame has `groups` codes, each below `entries`. A module may be a block of others. Streamable
    modules are transformers' causal ones, which are named differently in each model and are
    recognized by their parts.
    """

    groups: int
    entries: int
    embed: EmbedFrames
    modules: Sequence[nn.Module]


class StreamDecoder:
    """Decodes any number of sessions frame by frame.

    Immutable after construction: all state is in a `StreamStates`. Holds packed weights, and of the
    modules only the small layers. The constructor raises `FailedPrecondition` for a layer that
    cannot be streamed.
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
        """Bytes of a session's state, for any length of stream."""
        shapes = [layer.state_shapes for layer in self._layers]
        return numbers_of(shapes) * self._dtype.itemsize

    def samples(self, frames: int) -> int:
        """Return the number of samples of a stream's first `frames` frames."""
        return self._level.rows(frames)

    def new_states(self, slots: int) -> StreamStates:
        """Return memory for the states of `slots` sessions; reset a slot before its first use."""
        shapes = [layer.state_shapes for layer in self._layers]
        return StreamStates(shapes, slots, self._dtype, self.device)

    @torch.inference_mode()
    def decode(self, states: StreamStates, pieces: Sequence[StreamPiece]) -> list[Tensor]:
        """Return the samples of each piece on the host: float [m] in [-1, 1]; m may be 0."""
        rows, spans = self.advance(states, pieces)
        return [row[span] for row, span in zip(rows.cpu(), spans, strict=True)]

    @torch.inference_mode()
    def advance(
        self, states: StreamStates, pieces: Sequence[StreamPiece], run: Run | None = None
    ) -> tuple[Tensor, list[slice]]:
        """Return a row of samples for each piece, and which of them belong to the piece.

        Rows are float [batch, n] in [-1, 1] on the decoder's device; a piece may have no samples.
        Pieces have distinct slots, and codes are below `entries`, as checked by the caller. Working
        memory is proportional to the longest piece times the number of pieces. After an exception
        all states are unchanged. `run` may call `forward` differently, such as in a graph.
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
        """Return the samples of frames int64 [batch, frames, groups]: float [batch, n]. Writes
        states."""
        x = self._embed(codes)
        for layer, past in zip(self._layers, states.layers, strict=True):
            x = layer.advance(batch, past, x)
        rows = x.flatten(1).clamp_(min=-1, max=1)
        batch.commit()
        return rows

    def run(self, states: StreamStates, codes: Array, members: Members) -> Tensor:
        """A `Run` for these states, with the host's values of the members."""
        batch = Batch(on_device(members.numbers, self.device), members)
        return self.forward(states, batch, on_device(codes, self.device))


def _layers_of(modules: Sequence[nn.Module]) -> tuple[list[StreamLayer], Level]:
    """Return the streaming form of these modules, and the level after them."""
    parts: list[Any] = []
    for each in modules:
        block = getattr(each, "block", None)
        parts += block if isinstance(block, nn.ModuleList) else [each]
    layers: list[StreamLayer] = []
    level, act = Level(), None
    for part in parts:
        match part:
            # Each SnakeBeta precedes a convolution that needs its input in new memory.
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
