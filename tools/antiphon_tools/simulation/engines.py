"""Counting engines for a talker and a vocoder. Their output identifies the segment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from antiphon.runtime.engine import Completed, Emitted, EngineEvent, InputChunk, SegmentSettings
from antiphon.values.chunk import Tensor
from antiphon.values.history import History
from antiphon.values.segment import FinishReason, SegmentKey

SAMPLES_PER_FRAME = 2


def frame_of(key: int, number: int) -> int:
    """Return the code of a frame for an answer with this key."""
    return (key * 131 + number * 7 + 1) % 65_521


def audio_of(key: int, frames: int) -> Tensor:
    """Return all samples of an answer."""
    codes = [frame_of(key, number) for number in range(frames)]
    return np.repeat(np.array(codes, np.float32), SAMPLES_PER_FRAME)


@dataclass(slots=True)
class _Speaking:
    key: int
    frames: int
    known: Tensor
    made: int = 0
    over: bool = False


class CountingTalker:
    """Emits one frame per step and segment, up to the `max_tokens` in the segment's sampling
    parameters.

    In the first step, it emits the frames of the history.
    """

    def __init__(self) -> None:
        self.segments: dict[SegmentKey, _Speaking] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment."""
        history, sampling = settings.history or History(), settings.sampling
        self.segments[key] = _Speaking(sampling.seed, sampling.max_tokens, history.frames)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Does nothing, because the talker needs no input."""

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return `tokens` after the end of the segment. No tokens ever arrive."""
        return "tokens" if self.segments[key].over else None

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Emit a frame or the end of each segment."""
        ready = [k for k, each in self.segments.items() if not each.over and k not in held]
        return [event for key in ready for event in self._advance(key)]

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the usage of a segment up to this point."""
        return Completed(key, FinishReason.CANCELLED, 0, self.segments[key].made)

    def release(self, key: SegmentKey) -> None:
        """Remove a segment."""
        del self.segments[key]

    def _advance(self, key: SegmentKey) -> list[EngineEvent]:
        segment = self.segments[key]
        if segment.made < len(segment.known):
            segment.made = len(segment.known)
            return [Emitted(key, "codes", 0, {"codes": segment.known})]
        if segment.made == segment.frames:
            segment.over = True
            end = Emitted(key, "codes", segment.made, finish_reason=FinishReason.STOP)
            return [end, Completed(key, FinishReason.STOP, 0, segment.made)]
        codes = np.full((1, 1), frame_of(segment.key, segment.made), np.uint16)
        segment.made += 1
        return [Emitted(key, "codes", segment.made - 1, {"codes": codes})]


@dataclass(slots=True)
class _Decoding:
    frames: list[Tensor] = field(default_factory=list)
    reason: FinishReason | None = None
    decoded: int = 0


class CountingVocoder:
    """Repeats the code of each frame as samples."""

    def __init__(self) -> None:
        self.segments: dict[SegmentKey, _Decoding] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment."""
        self.segments[key] = _Decoding()

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store frames."""
        segment = self.segments[key]
        if chunk.tensors:
            segment.frames.append(chunk.tensors["codes"])
        segment.reason = chunk.finish_reason

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return `codes` if there is nothing to decode and the input has not ended."""
        segment = self.segments[key]
        return None if segment.frames or segment.reason else "codes"

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Decode the stored frames of each segment."""
        ready = [k for k in self.segments if k not in held and self.awaited_edge(k) is None]
        return [event for key in ready for event in self._decode(key)]

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the usage of a segment up to this point."""
        frames = self.segments[key].decoded
        return Completed(key, FinishReason.CANCELLED, frames, frames * SAMPLES_PER_FRAME)

    def release(self, key: SegmentKey) -> None:
        """Remove a segment."""
        del self.segments[key]

    def _decode(self, key: SegmentKey) -> list[EngineEvent]:
        segment = self.segments[key]
        frames, segment.frames = segment.frames, []
        position = segment.decoded * SAMPLES_PER_FRAME
        tensors: dict[str, Tensor] = {}
        if frames:
            codes = np.concatenate(frames)
            samples = np.repeat(codes[:, 0].astype(np.float32), SAMPLES_PER_FRAME)
            tensors = {"samples": samples, "codes": codes}
            segment.decoded += len(codes)
        reason, segment.reason = segment.reason, None
        events: list[EngineEvent] = [Emitted(key, "audio", position, tensors, reason)]
        if reason is not None:
            total = segment.decoded * SAMPLES_PER_FRAME
            events.append(Completed(key, reason, segment.decoded, total))
        return events
