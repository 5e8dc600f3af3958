"""A vocoder segment, which keeps track of the frames received, the frames to decode and the samples
sent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from antiphon.runtime.engine import Completed, Emitted, EngineEvent, InputChunk
from antiphon.values.chunk import Tensor, Tensors
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.vocoder.received_codes import check_order


@dataclass(frozen=True, slots=True)
class VocoderEdges:
    """The names of the edges in the pipeline's declaration.

    The tensor on `frames` has the same name as the edge. A chunk on `audio` contains `samples` and
    the frames from which they were decoded.
    """

    frames: str
    audio: str


@dataclass(frozen=True, slots=True)
class Pending:
    """Frames to decode, as a uint16 array of shape [n, groups]. If `prime` is true, they are only
    decoded to prepare the state, and their samples are not sent.
    """

    codes: Tensor
    prime: bool


@dataclass(slots=True)
class VocoderSegment:
    """A segment that has been admitted. Once its first frames are decoded, `slot` contains its
    decoder state.

    `primed` frames are decoded before its own `frames`.
    """

    key: SegmentKey
    edges: VocoderEdges
    wanted: bool
    pending: deque[Pending] = field(default_factory=deque)
    slot: int | None = None
    frames: int = 0
    primed: int = 0
    samples: int = 0
    finish_reason: FinishReason | None = None
    over: bool = False

    @property
    def can_step(self) -> bool:
        """Whether there are frames to decode, or an end of input to process."""
        return not self.over and (bool(self.pending) or self.finish_reason is not None)

    @property
    def waiting(self) -> int:
        """The number of frames that are waiting to be decoded."""
        return sum(len(each.codes) for each in self.pending)

    def accept(self, codes: Tensor, chunk: InputChunk) -> None:
        """Queue the frames of a chunk that has already been validated."""
        if chunk.prime:
            self.primed += len(codes)
        else:
            self.frames += len(codes)
        self.finish_reason = chunk.finish_reason
        if len(codes) and self.wanted:
            self.pending.append(Pending(codes, chunk.prime))

    def take(self, limit: int) -> Pending:
        """Remove up to `limit` pending frames from the queue and return them. They may come from
        several chunks.
        """
        prime, parts = self.pending[0].prime, []
        while limit and self.pending and self.pending[0].prime == prime:
            codes = self.pending.popleft().codes
            if len(codes) > limit:
                self.pending.appendleft(Pending(codes[limit:], prime))
            parts.append(codes[:limit])
            limit -= len(parts[-1])
        return Pending(np.concatenate(parts) if len(parts) > 1 else parts[0], prime)

    def end(self) -> None:
        """Mark the segment as ended."""
        self.over = True

    def decoded(self, frames: Pending, samples: Tensor) -> list[EngineEvent]:
        """Return the events for decoded frames."""
        tensors = {"samples": samples, self.edges.frames: frames.codes}
        return self.emit({} if frames.prime else tensors)

    def emit(self, tensors: Tensors) -> list[EngineEvent]:
        """Return the events for output. If nothing is pending, these include the segment's last
        events.
        """
        events: list[EngineEvent] = []
        finish_reason = None if self.pending else self.finish_reason
        if self.wanted and (tensors or finish_reason):
            audio = Emitted(self.key, self.edges.audio, self.samples, tensors, finish_reason)
            events.append(audio)
        if tensors:
            self.samples += len(tensors["samples"])
        if finish_reason:
            self.over = True
            events.append(self.cost(finish_reason))
        return events

    def cost(self, reason: FinishReason) -> Completed:
        """Return the segment's counts."""
        return Completed(self.key, reason, self.frames, self.samples)

    def check_order(self, chunk: InputChunk) -> None:
        """Raise an error unless the chunk is on the input edge and follows the previous one without
        a gap.
        """
        due = 0 if chunk.prime else self.frames
        check_order(chunk, self.edges.frames, "frame", due, self.finish_reason)
