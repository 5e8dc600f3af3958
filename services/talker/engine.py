"""The talker's engine: speech codes of many segments, one frame a step each.

A step is one forward over everything that can go on: chunks of prompts, at most
`PREFILL_ROWS_PER_STEP` rows of them, and one row of every segment whose next text has
come. Those draw a frame in the same step and emit it. So a frame leaves at once, before
its successor's text is waited for; a text row that has not come is waited for, never
replaced; and a long prompt delays others by its share of a step.

Draws are counted as Hugging Face counts tokens: draw n of at most `max_tokens` is
the stop code (finish), the last one allowed (finish, no frame), or frame n-1.

Codes do not depend on who else is served. In float32 on a CPU with one thread not even
their digits do: see `services.talker.slots`, `.segment` and `.experts`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from antiphon.errors import Internal, InvalidArgument
from antiphon.runtime.engine import (
    Completed,
    Emitted,
    EngineEvent,
    Failed,
    InputChunk,
    SegmentSettings,
)
from antiphon.segment import FinishReason, SegmentKey
from services.talker.model import Chunk, Draw, Drawn, Talker
from services.talker.segment import Segment

CODES = "codes"
# Bounds how long the frames of other segments wait for a long prompt.
PREFILL_ROWS_PER_STEP = 256


class TalkerEngine:
    """Implements `antiphon.runtime.engine.Engine`. Positions are bounded by `context_limit`."""

    def __init__(self, model: Talker, context_limit: int) -> None:
        self._model = model
        self._context_limit = context_limit
        self._segments: dict[SegmentKey, Segment] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Raises `InvalidArgument` for an unknown voice (empty: the first) or output."""
        voices = self._model.rows.voices
        voice = settings.voice.lower() or voices[0]
        if voice not in voices:
            raise InvalidArgument(
                f"voice: {settings.voice!r} is unknown; there are {', '.join(voices)}",
                field="voice",
            )
        if settings.outputs != {CODES}:
            raise InvalidArgument(
                f"outputs: the talker makes {CODES!r}, not {sorted(settings.outputs)}",
                field="outputs",
            )
        self._segments[key] = Segment(key, voice, settings.sampling, self._model.new_transcript())

    @torch.inference_mode()
    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store prompt or tokens; see `Transcript`. The first chunk takes a slot.

        Raises `InvalidArgument` over the limit and `ResourceExhausted` without a slot.
        """
        segment = self._segments[key]
        segment.transcript.accept(chunk)
        rows = segment.transcript.prompt_rows or 0
        if rows > self._context_limit:
            raise InvalidArgument(
                f"the prompt takes {rows} talker positions of at most {self._context_limit}",
                field="messages",
            )
        segment.bound(self._context_limit)
        if segment.slot is None:
            segment.slot = self._model.take_slot()

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """`prompt`, `tokens`, or None."""
        return self._segments[key].awaited_edge

    @torch.inference_mode()
    def release(self, key: SegmentKey) -> None:
        """Forget the segment and give its slot back."""
        segment = self._segments.pop(key)
        if segment.slot is not None:
            unsound = 0 if segment.sound else segment.positions
            self._model.cache.give_back(segment.slot, clear=unsound)

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Prefill a part, or make one frame, of every segment that can and is not `held`."""
        able = [
            segment
            for segment in self._segments.values()
            if not segment.ended and segment.key not in held and segment.awaited_edge is None
        ]
        events: list[EngineEvent] = []
        for segment in able:
            if segment.transcript.silent:
                events += _finish(segment, FinishReason.STOP)
        speaking = [segment for segment in able if not segment.ended]
        chunks = _take_chunks(speaking)
        drawing = [segment for segment in speaking if _can_draw(segment)]
        draws = [_next_draw(segment) for segment in drawing]
        if chunks or draws:
            for segment, drawn in zip(drawing, self._model.step(chunks, draws), strict=True):
                events += self._take_frame(segment, drawn)
        return events

    def _take_frame(self, segment: Segment, drawn: Drawn) -> Sequence[EngineEvent]:
        """Emit what was drawn, or end with it."""
        step = segment.frames
        segment.sound = drawn.decided
        if not drawn.decided:
            segment.ended = True
            return (Failed(segment.key, Internal(f"frame {step}: the logits are not finite")),)
        if drawn.codes[0, 0] == self._model.stop_code:
            return _finish(segment, FinishReason.STOP)
        if step + 1 == segment.sampling.max_tokens:
            return _finish(segment, FinishReason.LENGTH)
        segment.frames += 1
        return (Emitted(segment.key, CODES, step, {"codes": drawn.codes}),)


def _take_chunks(segments: Collection[Segment]) -> list[Chunk]:
    """The next chunks of prompts, within the budget; whoever has had least comes first.

    So a short prompt is not behind a long one that came before it, and a long one goes
    on, since those before it are soon done.
    """
    budget, chunks = PREFILL_ROWS_PER_STEP, []
    waiting = [segment for segment in segments if segment.next_chunk_end]
    while waiting:
        segment = min(waiting, key=lambda each: each.prefilled)
        start, stop = segment.prefilled, segment.next_chunk_end
        if stop is None or segment.slot is None:
            waiting.remove(segment)
            continue
        if stop - start > budget:
            break
        budget -= stop - start
        segment.prefilled = stop
        chunks.append(Chunk(segment.slot, start, stop, segment.transcript, segment.voice))
    return chunks


def _can_draw(segment: Segment) -> bool:
    return segment.prompt_complete and segment.next_token is not None


def _next_draw(segment: Segment) -> Draw:
    """The next row and draw of a segment that can."""
    slot, token = segment.slot, segment.next_token
    assert slot is not None
    assert token is not None
    position = segment.prefilled + segment.frames
    return Draw(slot, position, token, segment.sampling, segment.frames)


def _finish(segment: Segment, reason: FinishReason) -> Sequence[EngineEvent]:
    """The segment's last events."""
    segment.ended = True
    return (
        Emitted(segment.key, CODES, segment.frames, finish_reason=reason),
        Completed(segment.key, reason, segment.transcript.prompt_rows or 0, segment.frames),
    )
