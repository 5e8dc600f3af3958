"""The code2wav engine: advances many segments over one `StreamDecoder`.

A segment's frames are decoded once, in order, as soon as they are there. A step
is bounded in frames, not in segments, so that audio leaves as it is made and a
long backlog of one segment neither delays others nor needs memory for all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from antiphon.chunk import Tensor, Tensors
from antiphon.errors import DataLoss, FailedPrecondition, Internal, InvalidArgument
from antiphon.runtime.engine import (
    Completed,
    Emitted,
    EngineEvent,
    Failed,
    InputChunk,
    SegmentSettings,
)
from antiphon.segment import FinishReason, SegmentKey
from services.code2wav.stream import StreamDecoder, StreamState

CODES, AUDIO = "codes", "audio"

# Frames that one step decodes at most, over all segments: small enough that a step
# stays well below a step watchdog on a slow CPU, and large enough to decode efficiently.
STEP_FRAMES = 32


@dataclass(frozen=True, slots=True)
class _Piece:
    """Frames that are to be decoded next: uint16 [n, groups]; of `prime`, only for the state."""

    codes: Tensor
    prime: bool


@dataclass(slots=True)
class _Segment:
    """What came, what is left to decode, what went out, and the decoder's state."""

    key: SegmentKey
    wanted: bool
    pending: deque[_Piece] = field(default_factory=deque)
    state: StreamState | None = None
    frames: int = 0
    samples: int = 0
    finish_reason: FinishReason | None = None
    over: bool = False

    @property
    def can_step(self) -> bool:
        """Whether frames or the finish wait to be worked off."""
        return not self.over and (bool(self.pending) or self.finish_reason is not None)

    def take(self, limit: int) -> _Piece | None:
        """The next frames, at most `limit`; None when only the finish is left."""
        if not self.pending:
            return None
        piece = self.pending.popleft()
        if len(piece.codes) <= limit:
            return piece
        self.pending.appendleft(_Piece(piece.codes[limit:], piece.prime))
        return _Piece(piece.codes[:limit], piece.prime)

    def emit(self, tensors: Tensors, finish_reason: FinishReason | None) -> list[EngineEvent]:
        """The events for output that is ready; with a finish reason it is the last."""
        events: list[EngineEvent] = []
        if self.wanted and (tensors or finish_reason):
            events.append(Emitted(self.key, AUDIO, self.samples, tensors, finish_reason))
        if tensors:
            self.samples += len(tensors["samples"])
        if finish_reason:
            self.over = True
            events.append(Completed(self.key, finish_reason, self.frames, self.samples))
        return events


class Code2WavEngine:
    """An `Engine`: edge `codes` in, edge `audio` out (see the pipeline's declaration).

    `context_limit` is the most frames of a segment. A segment holds
    `decoder.state_bytes` from its first decoded frame to its release.
    """

    def __init__(self, decoder: StreamDecoder, context_limit: int) -> None:
        self._decoder = decoder
        self._context_limit = context_limit
        self._segments: dict[SegmentKey, _Segment] = {}
        # Segments that can step, the longest waiting first.
        self._ready: dict[SegmentKey, None] = {}

    @property
    def state_bytes(self) -> int:
        """Bytes of decoder state that all segments hold now."""
        holding = sum(segment.state is not None for segment in self._segments.values())
        return holding * self._decoder.state_bytes

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Take a segment in; holds no accelerator memory yet."""
        if key in self._segments:
            raise FailedPrecondition(f"segment {key} is there already")
        self._segments[key] = _Segment(key, wanted=AUDIO in settings.outputs)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Check and queue frames.

        Raises `DataLoss` for chunks that do not follow on each other, and
        `InvalidArgument` for codes that the decoder has no place for.
        """
        segment = self._segments[key]
        _check_order(segment, chunk)
        codes = self._codes(chunk)
        if segment.frames + len(codes) > self._context_limit:
            raise _invalid(f"more than {self._context_limit} frames in a segment")
        segment.frames += len(codes)
        segment.finish_reason = chunk.finish_reason
        if len(codes) and segment.wanted:
            segment.pending.append(_Piece(codes, chunk.prime))
        if segment.can_step:
            self._ready[key] = None

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """`codes`, or None while frames or the finish wait to be worked off."""
        return None if self._segments[key].can_step else CODES

    def step(self) -> Sequence[EngineEvent]:
        """Decode at most `STEP_FRAMES` frames; each segment that can step gets its turn."""
        events: list[EngineEvent] = []
        budget = STEP_FRAMES
        for key in list(self._ready):
            segment = self._segments[key]
            piece = segment.take(budget)
            events += self._advance(segment, piece)
            del self._ready[key]
            if segment.can_step:
                self._ready[key] = None
            budget -= len(piece.codes) if piece else 0
            if not budget:
                break
        return events

    def release(self, key: SegmentKey) -> None:
        """Forget the segment and free its decoder state."""
        del self._segments[key]
        self._ready.pop(key, None)

    def _codes(self, chunk: InputChunk) -> Tensor:
        """The chunk's frames, uint16 [n, groups], n = 0 for a bare finish."""
        groups, entries = self._decoder.groups, self._decoder.entries
        if not chunk.tensors and chunk.segment_finished:
            return np.empty((0, groups), dtype=np.uint16)
        if set(chunk.tensors) != {CODES}:
            raise _invalid(f"one tensor of that name is due, {sorted(chunk.tensors)} came")
        codes = chunk.tensors[CODES]
        if codes.dtype != np.uint16 or codes.ndim != 2 or codes.shape[1] != groups:
            raise _invalid(f"must be uint16 [n, {groups}], not {codes.dtype} {codes.shape}")
        if codes.size and codes.max() >= entries:
            raise _invalid(f"must be below {entries}, got {codes.max()}")
        return codes

    def _advance(self, segment: _Segment, piece: _Piece | None) -> list[EngineEvent]:
        """Decode a piece and tell what came of it, up to the segment's end."""
        tensors: dict[str, Tensor] = {}
        if piece is not None:
            try:
                samples = self._decode(segment, piece.codes)
            except Exception as error:
                segment.over = True
                return [Failed(segment.key, _failure(segment.samples, error))]
            if not piece.prime:
                tensors = {"samples": samples, "codes": piece.codes}
        finish_reason = None if segment.pending else segment.finish_reason
        return segment.emit(tensors, finish_reason)

    def _decode(self, segment: _Segment, codes: Tensor) -> Tensor:
        """The samples that these frames add, float32 [m]."""
        if segment.state is None:
            segment.state = self._decoder.new_state()
        ids = torch.from_numpy(codes.astype(np.int64))
        samples: Tensor = self._decoder.decode(segment.state, ids).float().cpu().numpy()
        return samples


def _check_order(segment: _Segment, chunk: InputChunk) -> None:
    """Raise unless the chunk is on the one input edge and follows on the last."""
    if chunk.edge != CODES:
        raise InvalidArgument(f"code2wav has no input edge {chunk.edge!r}", edge=chunk.edge)
    if segment.finish_reason is not None:
        raise DataLoss("codes: a chunk came after the segment's last", edge=CODES)
    if chunk.position != segment.frames:
        raise DataLoss(
            f"codes: frame {segment.frames} was due, frame {chunk.position} came", edge=CODES
        )
    if chunk.segment_finished != (chunk.finish_reason is not None):
        raise DataLoss("codes: the last chunk, and no other, has a finish reason", edge=CODES)


def _invalid(message: str) -> InvalidArgument:
    return InvalidArgument(f"codes: {message}", field=CODES, edge=CODES)


def _failure(samples: int, error: Exception) -> Internal:
    failure = Internal(f"decoding failed after {samples} samples: {error!r}", stage="code2wav")
    failure.__cause__ = error
    return failure
