"""An engine for the code2wav role that doesn't need a model, for runtime tests.

Each codec frame becomes `SAMPLES_PER_FRAME` samples. Their value is the frame's first code, plus
the sum of the first codes of all frames that primed the segment. An engine with `look_ahead` only
decodes a frame after this many further frames, or the end, have arrived. A frame with the code
`POISON` makes its segment fail, and `EXPLOSION` makes the whole engine fail.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from antiphon.errors import Internal
from antiphon.runtime.engine import (
    Completed,
    Emitted,
    EngineEvent,
    Failed,
    InputChunk,
    SegmentSettings,
    StageFacts,
)
from antiphon.values.chunk import Tensor
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason, SegmentKey

SAMPLES_PER_FRAME = 4
GROUPS = 2
POISON = 613
EXPLOSION = 666

NEUTRAL_SAMPLING = Sampling(
    temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1
)
FACTS = StageFacts(
    model="fake",
    checkpoint_fingerprint="fake-checkpoint",
    engine="fake",
    default_sampling=NEUTRAL_SAMPLING,
    sample_rate_hz=50,
    samples_per_frame=SAMPLES_PER_FRAME,
    code_groups=GROUPS,
    code_entries=1024,
)


@dataclass(slots=True)
class _Segment:
    frames: list[Tensor] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    decoded: int = 0
    primed: int = 0


class FakeEngine:
    """Decodes a frame by repeating a number.

    Steps block while `gate` is cleared, and `in_step` is set during a step. `stepped`, `released`
    and the settings in `admitted` record what happened on the engine's thread.
    """

    def __init__(self, look_ahead: int = 0) -> None:
        self._look_ahead = look_ahead
        self.segments: dict[SegmentKey, _Segment] = {}
        self.admitted: deque[SegmentSettings] = deque(maxlen=1024)
        self.released: queue.Queue[SegmentKey] = queue.Queue(1024)
        self.stepped: queue.Queue[int] = queue.Queue(1024)
        self.in_step = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment."""
        self.segments[key] = _Segment()
        self.admitted.append(settings)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store frames."""
        segment = self.segments[key]
        if chunk.prime:
            segment.primed += int(chunk.tensors["codes"][:, 0].sum(dtype=np.int64))
            return
        if chunk.tensors:
            segment.frames.append(chunk.tensors["codes"])
        segment.finish_reason = chunk.finish_reason

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return `codes` if there is nothing to decode and the input hasn't ended."""
        segment = self.segments[key]
        waiting = sum(map(len, segment.frames))
        return None if waiting > self._look_ahead or segment.finish_reason else "codes"

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Decode the pending frames of every segment."""
        self.in_step.set()
        self.gate.wait()
        ready = [k for k in self.segments if k not in held and self.awaited_edge(k) is None]
        events = [event for key in ready for event in self._decode(key)]
        self.in_step.clear()
        self.stepped.put_nowait(len(events))
        return events

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the counts of what has been decoded so far."""
        frames = self.segments[key].decoded
        return Completed(key, FinishReason.CANCELLED, frames, frames * SAMPLES_PER_FRAME)

    def release(self, key: SegmentKey) -> None:
        """Remove a segment."""
        del self.segments[key]
        self.released.put_nowait(key)

    def _decode(self, key: SegmentKey) -> list[EngineEvent]:
        segment = self.segments[key]
        frames, segment.frames = segment.frames, []
        codes = np.concatenate(frames) if frames else np.empty((0, GROUPS), np.uint16)
        if self._look_ahead and segment.finish_reason is None:
            segment.frames = [codes[-self._look_ahead :]]
            codes = codes[: -self._look_ahead]
        if EXPLOSION in codes:
            raise RuntimeError("the fake engine exploded")
        if POISON in codes:
            segment.finish_reason = None
            return [Failed(key, Internal("a poisoned frame"))]
        samples = np.repeat(codes[:, 0].astype(np.float32) + segment.primed, SAMPLES_PER_FRAME)
        position = segment.decoded * SAMPLES_PER_FRAME
        segment.decoded += len(codes)
        tensors = {"samples": samples, "codes": codes} if len(codes) else {}
        reason, segment.finish_reason = segment.finish_reason, None
        events: list[EngineEvent] = [Emitted(key, "audio", position, tensors, reason)]
        if reason is not None:
            total = segment.decoded * SAMPLES_PER_FRAME
            events.append(Completed(key, reason, segment.decoded, total))
        return events
