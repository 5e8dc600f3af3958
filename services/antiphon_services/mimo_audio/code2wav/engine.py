"""Code2wav's engine: audio of many segments.

If the edge `codes` is delivered whole, the frames of a minute are decoded together, as the vendor's
code does. If it is streamed, they are decoded in windows, whose samples are near to that: see
`FrameCodecDecoder` for why they differ. The delivery decides, not when frames
come.

Each window is computed by itself, so its samples do not depend on what else is served. A step
decodes windows of the segments that have had least. A fault fails its segment and no other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from antiphon.errors import ResourceExhausted
from antiphon.pipelines.mimo_audio import AUDIO, CODE2WAV, CODES
from antiphon.runtime.engine import Completed, EngineEvent, InputChunk, SegmentSettings
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.mimo_audio.code2wav.decoder import FrameCodecDecoder
from antiphon_services.mimo_audio.code2wav.window_segment import WindowSegment
from antiphon_services.mimo_audio.code2wav.windows import WindowPlan
from antiphon_services.stage.isolation import alone

FRAMES_AT_A_TIME = 600
"""Of all windows in a step; one more window is begun while it is not reached."""


class WindowEngine:
    """Implements `antiphon.runtime.engine.Engine`: `codes` in, `audio` out.

    `context_limit` is the most frames of a segment, `slots` the most segments. Streams are decoded
    by `streamed`.
    """

    def __init__(
        self, decoder: FrameCodecDecoder, streamed: WindowPlan, *, context_limit: int, slots: int
    ) -> None:
        self._decoder = decoder
        self._streamed = streamed
        self._context_limit = context_limit
        self._slots = slots
        self._segments: dict[SegmentKey, WindowSegment] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Raises `ResourceExhausted` when all slots are taken."""
        if len(self._segments) == self._slots:
            raise ResourceExhausted(f"{CODE2WAV} has {self._slots} slots, and all are taken")
        plan = WindowPlan(None) if CODES in settings.whole_inputs else self._streamed
        self._segments[key] = WindowSegment(key, AUDIO, AUDIO in settings.outputs, plan=plan)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Check and queue frames. Raises `DataLoss` or `InvalidArgument`."""
        self._segments[key].accept(chunk, self._context_limit)

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """`codes`, or None while there is something to do."""
        segment = self._segments[key]
        waits = not (segment.ended or segment.complete or segment.next_window)
        return CODES if waits else None

    def so_far(self, key: SegmentKey) -> Completed:
        """What the segment has cost until now."""
        return self._segments[key].cost(FinishReason.CANCELLED)

    def release(self, key: SegmentKey) -> None:
        """Forget the segment."""
        del self._segments[key]

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Decode for the segments that are not `held`."""
        events: list[EngineEvent] = []
        free = [each for key, each in self._segments.items() if key not in held]
        done = 0
        while done < FRAMES_AT_A_TIME:
            ready = [(each, window) for each in free if (window := each.next_window) is not None]
            if not ready:
                break
            segment, window = min(ready, key=lambda each: each[0].served)
            work = window.right - window.left
            segment.served += work
            done += work
            with alone(segment.key, events, segment.fail):
                samples = self._decoder.window_samples(segment.codes(window), window)
                events.append(segment.decoded(window, samples))
        for segment in free:
            if segment.complete:
                events += segment.end()
        return events
