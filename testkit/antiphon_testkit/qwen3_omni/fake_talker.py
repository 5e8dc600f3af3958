"""An engine for the talker role that doesn't need a model. It generates frames as fast as it is
allowed to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from antiphon.runtime.engine import (
    Completed,
    Emitted,
    EngineEvent,
    InputChunk,
    SegmentSettings,
)
from antiphon.values.chunk import Tensor
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import GROUPS


class FakeTalker:
    """Emits one frame per step, up to `frames` frames per segment. All codes of a frame are equal
    to its number, starting at 1.

    The engine doesn't wait for input. Before the first frame, it emits the frames in `reference`,
    which prime the consumer, with one `Emitted` per array. `made` contains the number of frames of
    each segment, and is never reset.
    """

    def __init__(self, frames: int, reference: Sequence[Tensor] = ()) -> None:
        self.made: Counter[SegmentKey] = Counter()
        self.segments: dict[SegmentKey, bool] = {}
        self._frames = frames
        self._reference = reference

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment."""
        self.segments[key] = False

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Ignore the input."""

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return `tokens` after the segment has ended, because more input never arrives."""
        return "tokens" if self.segments[key] else None

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Emit a frame, or the end, for every segment that isn't held."""
        ready = [key for key, ended in self.segments.items() if not ended and key not in held]
        return [event for key in ready for event in self._advance(key)]

    def release(self, key: SegmentKey) -> None:
        """Remove a segment."""
        del self.segments[key]

    def _advance(self, key: SegmentKey) -> list[EngineEvent]:
        frame = self.made[key]
        if frame == self._frames:
            self.segments[key] = True
            end = Emitted(key, "codes", frame, finish_reason=FinishReason.STOP)
            return [end, Completed(key, FinishReason.STOP, 0, frame)]
        self.made[key] += 1
        codes = np.full((1, GROUPS), frame + 1, np.uint16)
        made = Emitted(key, "codes", frame, {"codes": codes})
        first = [] if frame else self._reference
        return [*(Emitted(key, "codes", 0, {"codes": each}, prime=True) for each in first), made]
