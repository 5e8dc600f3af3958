"""Code2wav's engine: computes the audio of many answers, each after its last code.

Each answer is computed by itself, so its samples do not depend on others. A step works on the
segments that have received the least work so far. An error fails only its segment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from antiphon.errors import ResourceExhausted
from antiphon.pipelines.covo_audio import AUDIO, CODE2WAV, CODES
from antiphon.runtime.engine import Completed, EngineEvent, InputChunk, SegmentSettings
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.covo_audio.code2wav.answer_segment import AnswerSegment
from antiphon_services.covo_audio.code2wav.decoder import AnswerDecoder
from antiphon_services.stage.isolation import alone

ROWS_AT_A_TIME = 16_384
"""The rows of one layer to compute in a step. At the released sizes, 10 s of speech have 4,300 rows
for each of 12 layers and 18 evaluations."""


class AnswerEngine:
    """Implements `antiphon.runtime.engine.Engine`: input `codes`, output `audio`.

    `context_limit` is the maximum number of codes of a segment, and `slots` the maximum number of
    segments. The seed of a segment's sampling determines its noise.
    """

    def __init__(self, decoder: AnswerDecoder, *, context_limit: int, slots: int) -> None:
        self._decoder = decoder
        self._context_limit = context_limit
        self._slots = slots
        self._segments: dict[SegmentKey, AnswerSegment] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment. Raises `ResourceExhausted` if all slots are in use."""
        if len(self._segments) == self._slots:
            raise ResourceExhausted(f"{CODE2WAV} has {self._slots} slots, and all are taken")
        wanted = AUDIO in settings.outputs
        self._segments[key] = AnswerSegment(key, AUDIO, wanted, noise_key=settings.sampling.seed)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Check and queue codes. Raises `DataLoss` or `InvalidArgument`."""
        self._segments[key].accept(chunk, self._context_limit)

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return the edge that the segment waits for: `codes`, or None."""
        segment = self._segments[key]
        return None if segment.ended or segment.ready or segment.complete else CODES

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the cost of the segment so far."""
        return self._segments[key].cost(FinishReason.CANCELLED)

    def release(self, key: SegmentKey) -> None:
        """Remove the segment and its work."""
        del self._segments[key]

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Compute for the segments that are not `held`."""
        events: list[EngineEvent] = []
        free = [each for key, each in self._segments.items() if key not in held]
        done = 0
        while done < ROWS_AT_A_TIME and (ready := [each for each in free if each.ready]):
            segment = min(ready, key=lambda each: each.served)
            before = segment.served
            with alone(segment.key, events, segment.fail):
                events += segment.advance(self._decoder)
            done += segment.served - before
        for segment in free:
            if segment.complete:
                events += segment.end()
        return events
