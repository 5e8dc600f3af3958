"""Decodes streams exactly. Each frame is decoded once, and a session's state has a fixed size.

Codec frames arrive a few at a time, and audio must be sent immediately. Decoding all frames again
for each chunk would have a quadratic cost. Decoding windows with some context would mean decoding
the context every time, and the result still wouldn't be exact: the joints are audible, and the
samples depend on how the frames were split into chunks.

The vocoders supported here are causal, which means that the output of every layer at a row depends
only on this row and on earlier ones. Each layer can therefore keep exactly the inputs that later
rows need:

- A convolution keeps the last (kernel - 1) * dilation rows of its input (`CausalConvolution`).
- A transposed convolution keeps the last input if its inputs overlap (`Upsampling`).
- A transformer with a window of w frames keeps the rotated keys and the values of w - 1 frames
  (`SlidingTransformer`).

Concatenating the samples of all chunks gives the same result as calling the model's `forward` with
all frames, no matter how the frames are split into chunks or which sessions share the calls. The
state has the same size for a stream of any length (`state_bytes`).

The following functions take part in a call:

    VocoderEngine.step         choose frames of many segments, bounded by `DecodePace`
    StreamDecoder.advance      pad the pieces to one shape; `Members` has slots and lengths
    Run                        call `forward` directly, or replay it as a CUDA graph (`Buckets`)
    StreamDecoder.forward      embed codes, then for each layer:
      StreamLayer.advance        state + new rows -> outputs; record the new state in `Batch`
    Batch.commit               write all new states at once

Nothing is written before `commit`. If a call fails because of one session, no session has changed,
and the engine repeats the call for each session separately
(`antiphon_services.stage.isolation.together`).

Two implementation details need an explanation. First, a transposed convolution doesn't produce any
rows for the first input of a stream, so a session at its start would have fewer rows than the other
sessions in the call. Such a session gets placeholder rows instead. `Batch.zero_start` sets them to
zero at every layer that could read them, and `Level.start` counts them. Second, transformers has a
copy of each module class for every model, so `_layers_of` recognizes modules by their attributes
instead of by their class.
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

# On a CPU, oneDNN compiles and keeps about 30 operations for each number of frames, which take up
# 13 MB. If a call has a single session and at least this many frames, an odd number is therefore
# padded by one frame. In shorter calls, the padding would be a large part of the work, and a
# listener is waiting for their audio.
PADDED_FROM = 5


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """One or more frames that follow the slot's earlier frames, as uint16 [n, groups]."""

    slot: int
    codes: Array


# A function that decodes the frames of n members (int64 [n, frames, groups]) to a float tensor [n,
# samples]. Rows may end with additional samples that have to be ignored.
Run = Callable[[Array, Members], Tensor]


# A function that embeds codes (int64 [batch, frames, groups]) as [batch, frames, width].
EmbedFrames = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Vocoder:
    """A causal vocoder. It consists of an embedding for its frames and a sequence of modules.

    Each frame has `groups` codes, all of which are below `entries`. A module may be a block of
    other modules. Only transformers' causal modules can be streamed. Their class names differ
    between models, so they are recognized by their attributes.
    """

    groups: int
    entries: int
    embed: EmbedFrames
    modules: Sequence[nn.Module]


class StreamDecoder:
    """Decodes any number of sessions frame by frame.

    The decoder is immutable after construction, because all state is in a `StreamStates`. It keeps
    packed copies of the weights and references only the small layers of the modules. The
    constructor raises `FailedPrecondition` if a layer can't be streamed.
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
        """The size of a session's state in bytes. It is the same for a stream of any length."""
        shapes = [layer.state_shapes for layer in self._layers]
        return numbers_of(shapes) * self._dtype.itemsize

    def samples(self, frames: int) -> int:
        """Return the number of samples for a stream's first `frames` frames."""
        return self._level.rows(frames)

    def new_states(self, slots: int) -> StreamStates:
        """Return memory for the states of `slots` sessions. A slot must be reset before its first
        use.
        """
        shapes = [layer.state_shapes for layer in self._layers]
        return StreamStates(shapes, slots, self._dtype, self.device)

    @torch.inference_mode()
    def decode(self, states: StreamStates, pieces: Sequence[StreamPiece]) -> list[Tensor]:
        """Return the samples of each piece on the host, as float [m] in [-1, 1]. m can be 0."""
        rows, spans = self.advance(states, pieces)
        return [row[span] for row, span in zip(rows.cpu(), spans, strict=True)]

    @torch.inference_mode()
    def advance(
        self, states: StreamStates, pieces: Sequence[StreamPiece], run: Run | None = None
    ) -> tuple[Tensor, list[slice]]:
        """Return one row of samples for each piece, together with the slice of this row that
        contains the piece's own samples.

        The rows are float [batch, n] in [-1, 1], on the decoder's device. A piece may have no
        samples. The caller must ensure that the slots of the pieces are distinct and that all codes
        are below `entries`. The working memory is proportional to the number of pieces multiplied
        by the length of the longest one. If an exception is raised, no state has changed. Use `run`
        to call `forward` in a different way, for example in a graph.
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
        """Return the samples (float [batch, n]) of frames (int64 [batch, frames, groups]) and
        update the states.
        """
        x = self._embed(codes)
        for layer, past in zip(self._layers, states.layers, strict=True):
            x = layer.advance(batch, past, x)
        rows = x.flatten(1).clamp_(min=-1, max=1)
        batch.commit()
        return rows

    def run(self, states: StreamStates, codes: Array, members: Members) -> Tensor:
        """Implement `Run` for these states. The values of `members` are read on the host.

        On a CPU, the frames of a single session may be padded (`PADDED_FROM`).
        """
        count, frames, _ = codes.shape
        if count == 1 and frames >= PADDED_FROM and frames % 2 and self.device.type == "cpu":
            codes = np.pad(codes, ((0, 0), (0, 1), (0, 0)))
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
            # Each SnakeBeta precedes a convolution, which needs its input in new memory.
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
                raise FailedPrecondition(f"vocoder: can't stream a {type(part).__name__}")
        act = None
    return layers, level
