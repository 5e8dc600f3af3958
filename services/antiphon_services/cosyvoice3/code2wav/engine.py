"""Code2wav's engine: computes the audio of many segments.

If the edge `codes` is delivered whole, the flow attends to a whole utterance, and the engine
decodes an utterance after its last code has arrived. If the edge is streamed, the flow computes
block after block, and the engine emits samples when blocks are complete; see `mel_stream`. The
delivery determines the mode, not the arrival times of codes.

Each utterance is computed separately, so that its samples do not depend on other segments. A step
works on the segments that have received the least work so far. An error fails only its segment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from antiphon.errors import InvalidArgument, ResourceExhausted
from antiphon.pipelines.cosyvoice3 import AUDIO, CODE2WAV, CODES, VOICE
from antiphon.runtime.engine import Completed, EngineEvent, InputChunk, SegmentSettings
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.cosyvoice3.code2wav.decoder import SpeechDecoder
from antiphon_services.cosyvoice3.code2wav.utterance_segment import UtteranceSegment
from antiphon_services.stage.isolation import alone

ROWS_AT_A_TIME = 16_384
"""The rows of one layer to compute in a step. At the released sizes, 10 s of speech have 22,000
rows for each of 22 layers and 10 evaluations."""


class Code2WavEngine:
    """Implements `antiphon.runtime.engine.Engine`: inputs `speaker_prompt` and `codes`, output
    `audio`.

    `context_limit` is the maximum number of codes of an utterance and its voice's prompt, and
    `slots` the maximum number of segments.
    """

    def __init__(self, decoder: SpeechDecoder, *, context_limit: int, slots: int) -> None:
        self._decoder = decoder
        self._context_limit = context_limit
        self._slots = slots
        self._segments: dict[SegmentKey, UtteranceSegment] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment. Raises `ResourceExhausted` if all slots are in use."""
        if len(self._segments) == self._slots:
            raise ResourceExhausted(f"{CODE2WAV} has {self._slots} slots, and all are taken")
        self._segments[key] = UtteranceSegment(
            key, AUDIO, AUDIO in settings.outputs, whole=CODES in settings.whole_inputs
        )

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Check and queue a voice or codes. Raises `DataLoss` or `InvalidArgument`."""
        segment = self._segments[key]
        if chunk.edge == VOICE:
            segment.accept_voice(chunk, self._decoder)
        elif chunk.edge == CODES:
            segment.accept_codes(chunk)
        else:
            raise InvalidArgument(
                f"{CODE2WAV} has no input edge {chunk.edge!r}; it has {VOICE} and {CODES}",
                edge=chunk.edge,
            )
        segment.check_length(self._context_limit)

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return the edge that the segment waits for: `speaker_prompt`, `codes`, or None."""
        return self._segments[key].missing_edge

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the cost of the segment so far."""
        return self._segments[key].cost(FinishReason.CANCELLED)

    def release(self, key: SegmentKey) -> None:
        """Remove the segment, and free its pages."""
        self._segments.pop(key).close()

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Decode for the segments that are not `held`."""
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
