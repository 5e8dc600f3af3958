"""An engine for decoders that compute each segment separately and in parts.

The engine always continues the ready segment that has received the least work so far, a policy
known as least attained service. A long answer therefore delays a short one by only one part at a
time. Segments don't share calls, so the samples of one segment never depend on other segments. A
step keeps starting parts until their total work reaches `step_work`, which the last part may
exceed. An error only affects the segment in which it occurred.

A segment ends in the step that emits its last samples. Each decoder defines its own unit of work,
for example a layer row, a frame or a latent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from antiphon.errors import ResourceExhausted
from antiphon.runtime.engine import (
    Completed,
    Emitted,
    EngineEvent,
    InputChunk,
    SegmentSettings,
)
from antiphon.values.chunk import Tensor
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.stage.isolation import alone
from antiphon_services.vocoder.received_codes import CheckedCodes


@dataclass(slots=True, kw_only=True)
class ServedSegment(ABC):
    """An admitted segment that has received `served` units of work so far.

    If its samples are `wanted`, they are emitted on the edge `audio`. `samples` is the number of
    samples emitted so far.
    """

    key: SegmentKey
    audio: str
    wanted: bool
    received: CheckedCodes
    served: int = 0
    samples: int = 0
    ended: bool = False

    def accept(self, chunk: InputChunk) -> None:
        """Validate input and queue it. Raises `DataLoss` or `InvalidArgument`."""
        self.received.accept(chunk)

    @property
    @abstractmethod
    def all_sent(self) -> bool:
        """Whether the samples for all received codes have been emitted."""

    @property
    def has_part(self) -> bool:
        """Whether a part can be computed. By default, this is the case once the last code has
        arrived.
        """
        return self.received.finished and not self.all_sent

    @property
    def ready(self) -> bool:
        """Whether there is a part for `advance` to compute."""
        return self.wanted and not self.ended and self.has_part

    @property
    def complete(self) -> bool:
        """Whether nothing remains to be done except emitting the end of the segment."""
        return self.received.finished and not self.ended and (self.all_sent or not self.wanted)

    @property
    def missing_edge(self) -> str | None:
        """The edge that the segment is waiting for, or None if a step can advance or end it."""
        return None if self.ended or self.ready or self.complete else self.due_edge

    @property
    def due_edge(self) -> str:
        """The edge whose next chunk is due."""
        return self.received.edge

    @abstractmethod
    def advance(self) -> list[EngineEvent]:
        """Compute one part and add its work to `served`. The segment must be `ready`."""

    def emit(self, samples: Tensor, **tensors: Tensor) -> list[EngineEvent]:
        """Return the event that emits `samples` (float32 [n]) together with the `tensors` of their
        codes.
        """
        position, self.samples = self.samples, self.samples + len(samples)
        return [Emitted(self.key, self.audio, position, {"samples": samples, **tensors})]

    def end(self) -> list[EngineEvent]:
        """Return the segment's last events. The segment must be `complete`."""
        reason = self.received.finish_reason
        assert reason is not None
        self.ended = True
        last = Emitted(self.key, self.audio, self.samples, finish_reason=reason)
        return [*([last] if self.wanted else []), self.cost(reason)]

    def cost(self, reason: FinishReason) -> Completed:
        """Return the segment's counts."""
        return Completed(self.key, reason, self.received.count, self.samples)

    def fail(self) -> None:
        """Mark the segment as ended and free its resources."""
        self.ended = True
        self.close()

    def close(self) -> None:  # noqa: B027 - most segments have no resources
        """Free the segment's resources. It is safe to call this more than once."""


class LeastServedEngine(ABC):
    """Implements `antiphon.runtime.engine.Engine`. `role` is the stage's name in error messages.

    `slots` is the maximum number of segments.
    """

    def __init__(self, role: str, *, slots: int, step_work: int) -> None:
        self._role, self._slots, self._step_work = role, slots, step_work
        self._segments: dict[SegmentKey, ServedSegment] = {}

    @abstractmethod
    def open(self, key: SegmentKey, settings: SegmentSettings) -> ServedSegment:
        """Create a segment. Raises `InvalidArgument` if its settings are not supported."""

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment. Raises `ResourceExhausted` if all slots are in use, and any error that
        `open` raises.
        """
        if len(self._segments) == self._slots:
            raise ResourceExhausted(f"{self._role}: all {self._slots} slots are in use")
        self._segments[key] = self.open(key, settings)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Validate input and queue it. Raises `DataLoss` or `InvalidArgument`."""
        self._segments[key].accept(chunk)

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return the edge that the segment is waiting for, or None if it can step."""
        return self._segments[key].missing_edge

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the segment's current counts."""
        return self._segments[key].cost(FinishReason.CANCELLED)

    def release(self, key: SegmentKey) -> None:
        """Remove the segment and free its resources."""
        self._segments.pop(key).close()

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Compute parts of the segments that are not in `held`."""
        events: list[EngineEvent] = []
        free = [each for key, each in self._segments.items() if key not in held]
        done = 0
        while done < self._step_work and (ready := [each for each in free if each.ready]):
            segment = min(ready, key=lambda each: each.served)
            before = segment.served
            with alone(segment.key, events, segment.fail):
                events += segment.advance()
            done += segment.served - before
        for segment in free:
            if segment.complete:
                events += segment.end()
        return events
