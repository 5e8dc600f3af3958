"""The engine of a vocoder, which runs many segments on one `StreamDecoder`.

A segment's frames are decoded exactly once, in order, as soon as they arrive. A step decodes the
frames that are pending and never waits for more. The number of frames per step is limited, but the
number of segments isn't. As a result, audio is sent as soon as it is produced, and a segment with a
long backlog neither delays the others nor needs memory for all of its frames at once. Segments of
similar length share a call. `antiphon_services.vocoder.stream` describes the decoding itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from antiphon.errors import FailedPrecondition, ResourceExhausted
from antiphon.runtime.engine import Completed, EngineEvent, InputChunk, SegmentSettings
from antiphon.transport.device_edge import ToHost
from antiphon.values.chunk import Tensor
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.stage.isolation import alone, together
from antiphon_services.vocoder.audio_segment import (
    Pending,
    VocoderEdges,
    VocoderSegment,
)
from antiphon_services.vocoder.buckets import Buckets
from antiphon_services.vocoder.pace import CPU, DecodePace
from antiphon_services.vocoder.received_codes import invalid_codes, read_codes
from antiphon_services.vocoder.stream import Run, StreamDecoder, StreamPiece

Turn = tuple[VocoderSegment, Pending]


class VocoderEngine:
    """An `Engine` that decodes codec frames to audio. `edges` are the edges declared by the
    pipeline.

    `context_limit` is the maximum number of frames in a segment, and `slots` is the maximum number
    of segments. Each segment occupies a slot of `decoder.state_bytes` bytes from its first decoded
    frame until it is released. If `bucketing` is given, calls of common shapes with up to `steady`
    frames are captured during construction.
    """

    def __init__(
        self,
        decoder: StreamDecoder,
        edges: VocoderEdges,
        context_limit: int,
        slots: int,
        pace: DecodePace = CPU,
        to_host: ToHost | None = None,
        bucketing: Bucketing | None = None,
        steady: int = 1,
    ) -> None:
        self._to_host = to_host or ToHost.direct()
        self._decoder = decoder
        self._edges = edges
        self._context_limit = context_limit
        self._slots = slots
        self._pace = pace
        # One additional slot is for members that consist only of padding.
        self._states = decoder.new_states(slots + (bucketing is not None))
        self._run: Run = partial(decoder.run, self._states)
        if bucketing is not None:
            self._run = Buckets(decoder, self._states, bucketing, pace, steady)
        self._free_slots = list(range(slots))
        self._segments: dict[SegmentKey, VocoderSegment] = {}
        # The segments that can step, starting with the one that has waited longest.
        self._ready: dict[SegmentKey, None] = {}

    @property
    def state_bytes(self) -> int:
        """The total size, in bytes, of all segments' decoder states."""
        return (self._slots - len(self._free_slots)) * self._decoder.state_bytes

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Register a segment. It doesn't have a slot yet. Raises `ResourceExhausted` if there are
        too many segments.
        """
        if key in self._segments:
            raise FailedPrecondition(f"segment {key} already exists")
        if len(self._segments) == self._slots:
            raise ResourceExhausted(f"the vocoder: all {self._slots} slots are in use")
        wanted = self._edges.audio in settings.outputs
        self._segments[key] = VocoderSegment(key, self._edges, wanted)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Validate frames and queue them.

        Raises `DataLoss` if there is a gap between chunks, and `InvalidArgument` if a code is
        outside the decoder's range.
        """
        segment = self._segments[key]
        segment.check_order(chunk)
        codes = read_codes(chunk, self._decoder.groups, self._decoder.entries)
        if segment.primed + segment.frames + len(codes) > self._context_limit:
            raise invalid_codes(
                chunk.edge, f"the segment has more than {self._context_limit} frames"
            )
        segment.accept(codes, chunk)
        if segment.can_step:
            self._ready[key] = None

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return the edge that delivers frames, or None if there is something to do without more
        input.
        """
        return None if self._segments[key].can_step else self._edges.frames

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Decode up to `DecodePace.step` frames, starting with the segments that have waited
        longest.
        """
        ready = [self._segments[key] for key in self._ready if key not in held]
        finishing = [segment for segment in ready if not segment.pending]
        waiting = [segment for segment in ready if segment.pending]
        shares = self._pace.shares([segment.waiting for segment in waiting])
        turns = [
            (segment, segment.take(share))
            for segment, share in zip(waiting, shares, strict=True)
            if share
        ]
        events = [event for segment in finishing for event in segment.emit({})]
        for group in self._pace.grouped([len(frames.codes) for _, frames in turns]):
            events += self._advance([turns[index] for index in group])
        for segment in (*finishing, *(segment for segment, _ in turns)):
            del self._ready[segment.key]
            if segment.can_step:
                self._ready[segment.key] = None
        return events

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the segment's current counts."""
        return self._segments[key].cost(FinishReason.CANCELLED)

    def release(self, key: SegmentKey) -> None:
        """Remove the segment and free its slot."""
        segment = self._segments.pop(key)
        self._ready.pop(key, None)
        if segment.slot is not None:
            self._free_slots.append(segment.slot)

    def _advance(self, turns: Sequence[Turn]) -> list[EngineEvent]:
        """Decode these frames in a single call. If the call fails, no state has changed."""
        events: list[EngineEvent] = []
        for (segment, frames), samples in zip(turns, together(self._decode, turns), strict=True):
            with alone(segment.key, events, segment.end):
                events += segment.decoded(frames, samples())
        return events

    def _decode(self, turns: Sequence[Turn]) -> list[Tensor]:
        """Return the samples for these frames, each as float32 [m]."""
        pieces = [StreamPiece(self._slot(segment), frames.codes) for segment, frames in turns]
        rows, spans = self._decoder.advance(self._states, pieces, self._run)
        # Copy all samples at once. Each segment then sends its own slice.
        return [
            row[span] for row, span in zip(self._to_host.copy(rows.float()), spans, strict=True)
        ]

    def _slot(self, segment: VocoderSegment) -> int:
        """Return the segment's slot. A segment without a slot is assigned one."""
        if segment.slot is None:
            segment.slot = self._free_slots.pop()
            self._states.reset(segment.slot)
        return segment.slot
