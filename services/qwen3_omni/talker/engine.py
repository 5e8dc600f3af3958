"""The talker's engine: speech codes of many segments, one frame a step each.

A step is one forward over everything that can go on: chunks of prompts, at most
`PREFILL_ROWS_PER_STEP` rows of them, and one row of every segment whose next text has
come. Those draw a frame in the same step and emit it. So a frame leaves at once, before
its successor's text is waited for; a text row that has not come is waited for, never
replaced; and a long prompt delays others by its share of a step.

With `launch_ahead` the device never waits for the host between two steps. A step is
launched for all that can go on as far as the host knows, and only then the frames of the
step before are read. The one thing that it may be wrong about is that a segment goes on:
the draw of one that has ended is dropped. A step is read when its own copy is there, not
when its successor has run; but what comes meanwhile, a text or a session, is a step late.

Draws are counted as Hugging Face counts tokens: draw n of at most `max_tokens` is
the stop code (finish), the last one allowed (finish, no frame), or frame n-1.

Codes do not depend on who else is served. In float32 on a CPU with one thread not even
their digits do: see `services.lm.decoder` and `services.qwen3_omni.talker.segment`.
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
from services.qwen3_omni.talker.flight import Flight
from services.qwen3_omni.talker.model import Draw, PromptRows, Talker
from services.qwen3_omni.talker.readback import Drawn
from services.qwen3_omni.talker.segment import TalkerSegment

CODES = "codes"
# Bounds how long the frames of other segments wait for a long prompt.
PREFILL_ROWS_PER_STEP = 256


class TalkerEngine:
    """Implements `antiphon.runtime.engine.Engine`. Positions are bounded by `context_limit`.

    With `launch_ahead` a step is launched before the frames of the one before are read.
    """

    def __init__(self, model: Talker, context_limit: int, *, launch_ahead: bool = False) -> None:
        self._model = model
        self._context_limit = context_limit
        self._launch_ahead = launch_ahead
        self._segments: dict[SegmentKey, TalkerSegment] = {}
        self._flight: Flight | None = None

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
        self._segments[key] = TalkerSegment(key, voice, settings.sampling, self._model.new_prompt())

    @torch.inference_mode()
    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store prompt or tokens; see `TalkerPrompt`. The first chunk takes a slot.

        Raises `InvalidArgument` over the limit and `ResourceExhausted` without a slot.
        """
        segment = self._segments[key]
        segment.prompt.accept(chunk)
        rows = segment.prompt.prompt_rows or 0
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
        """Forget the segment and give its slot back, whatever is in flight."""
        segment = self._segments.pop(key)
        if segment.slot is not None:
            self._model.give_slot_back(segment.slot, segment.doubtful)

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Prefill a part, or make one frame, of every segment that can and is not `held`.

        With `launch_ahead`, what it launches is handed on by a later step.
        """
        free = [
            segment
            for segment in self._segments.values()
            if not segment.ended and segment.key not in held
        ]
        events = self._hand_on(free)
        flight, self._flight = self._flight, None
        # A launch takes a while, and what is there already does not wait for it.
        if flight is None or not flight.landed:
            self._flight = self._launch(free)
        if not self._launch_ahead:
            flight, self._flight = self._flight, None
        if flight is not None:
            flight.land()
            events += self._hand_on(free)
        return events

    def _launch(self, segments: Collection[TalkerSegment]) -> Flight | None:
        """Start a step of those that can go on; None when it draws nothing."""
        going = [segment for segment in segments if not segment.ended]
        chunks = _take_chunks(going)
        drawing = [segment for segment in going if segment.can_draw]
        if not (chunks or drawing):
            return None
        readback = self._model.step(chunks, [_next_draw(segment) for segment in drawing])
        return Flight(drawing, readback) if drawing else None

    def _hand_on(self, segments: Collection[TalkerSegment]) -> list[EngineEvent]:
        """What has been found out about segments that are not held."""
        events: list[EngineEvent] = []
        for segment in segments:
            if segment.ended:
                continue
            if segment.prompt.silent:
                events += _finish(segment, FinishReason.STOP)
            elif segment.waiting is not None:
                drawn, segment.waiting = segment.waiting, None
                events += self._take_frame(segment, drawn)
        return events

    def _take_frame(self, segment: TalkerSegment, drawn: Drawn) -> Sequence[EngineEvent]:
        """Emit what was drawn, or end with it."""
        step = segment.frames
        if not drawn.decided:
            segment.ended = True
            return (Failed(segment.key, Internal(f"frame {step}: the logits are not finite")),)
        segment.shown = step + 1
        if drawn.codes[0, 0] == self._model.stop_code:
            return _finish(segment, FinishReason.STOP)
        if step + 1 == segment.sampling.max_tokens:
            return _finish(segment, FinishReason.LENGTH)
        segment.frames += 1
        return (Emitted(segment.key, CODES, step, {"codes": drawn.codes}),)


def _take_chunks(segments: Collection[TalkerSegment]) -> list[PromptRows]:
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
        chunks.append(PromptRows(segment.slot, start, stop, segment.prompt, segment.voice))
    return chunks


def _next_draw(segment: TalkerSegment) -> Draw:
    """The next row and draw of a segment that can, which are launched now."""
    slot, token, step = segment.slot, segment.next_token, segment.launched
    assert slot is not None
    assert token is not None
    segment.launched += 1
    return Draw(slot, segment.prefilled + step, token, segment.sampling, step)


def _finish(segment: TalkerSegment, reason: FinishReason) -> Sequence[EngineEvent]:
    """The segment's last events."""
    segment.ended = True
    return (
        Emitted(segment.key, CODES, segment.frames, finish_reason=reason),
        Completed(segment.key, reason, segment.prompt.prompt_rows or 0, segment.frames),
    )
