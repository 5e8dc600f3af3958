"""The talker's engine: speech codes of many segments, one frame a step each.

Order within a step of a segment: prefill what is ready; once the prompt is
complete, or the text of the pending frame has come, one forward; then draw a
frame and emit it. So a frame leaves at once, before its successor's text is
waited for, and a text row that has not come is waited for, never replaced.

Draws are counted as Hugging Face counts tokens: draw n of at most `max_tokens` is
the stop code (finish), the last one allowed (finish, no frame), or frame n-1.
Segments do not share a forward, so codes do not depend on who else is served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from antiphon.errors import AntiphonError, InvalidArgument
from antiphon.runtime.engine import (
    Completed,
    Emitted,
    EngineEvent,
    Failed,
    InputChunk,
    SegmentSettings,
)
from antiphon.sampling import Sampling
from antiphon.segment import FinishReason, SegmentKey
from services.talker.codebooks import Frame
from services.talker.decoder import KeyValues
from services.talker.model import Talker
from services.talker.transcript import TOKENS, Transcript

CODES = "codes"
# Bounds how long the frames of other segments wait for a long prompt.
PREFILL_ROWS_PER_STEP = 512
# Frames that a new cache has room for behind the prompt before it grows.
FRAMES_RESERVED = 128


@dataclass(slots=True)
class _Segment:
    """One segment. `hidden` is the last state [1, hidden], set once the prompt is done;
    `pending` the frame whose successor is next; `drawn` the group-0 codes so far."""

    key: SegmentKey
    voice: str
    sampling: Sampling
    transcript: Transcript
    cache: KeyValues | None = None
    prefilled: int = 0
    hidden: Tensor | None = None
    pending: Frame | None = None
    drawn: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def awaited_edge(self) -> str | None:
        """The edge without which the segment cannot step."""
        transcript = self.transcript
        if self.ended or transcript.silent or transcript.ready_rows > self.prefilled:
            return None
        if self.hidden is None:
            return transcript.next_prompt_edge
        text_is_missing = self.pending is not None and transcript.text(len(self.drawn) - 1) is None
        return TOKENS if text_is_missing else None


class TalkerEngine:
    """Implements `antiphon.runtime.engine.Engine`. Positions are bounded by `context_limit`."""

    def __init__(self, model: Talker, context_limit: int) -> None:
        self._model = model
        self._context_limit = context_limit
        self._segments: dict[SegmentKey, _Segment] = {}

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
        self._segments[key] = _Segment(key, voice, settings.sampling, self._model.new_transcript())

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store prompt or tokens; see `Transcript`. Raises `InvalidArgument` over the limit."""
        segment = self._segments[key]
        segment.transcript.accept(chunk)
        rows = segment.transcript.prompt_rows or 0
        if rows > self._context_limit:
            raise InvalidArgument(
                f"the prompt takes {rows} talker positions of at most {self._context_limit}",
                field="messages",
            )

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """`prompt`, `tokens`, or None."""
        return self._segments[key].awaited_edge

    def release(self, key: SegmentKey) -> None:
        """Forget the segment and its cache."""
        del self._segments[key]

    @torch.inference_mode()
    def step(self) -> Sequence[EngineEvent]:
        """Prefill a part, or make one frame, of every segment that can."""
        events: list[EngineEvent] = []
        budget = PREFILL_ROWS_PER_STEP
        for segment in self._segments.values():
            if segment.ended or segment.awaited_edge is not None:
                continue
            before = segment.prefilled
            try:
                events.extend(self._advance(segment, budget))
            except AntiphonError as error:
                segment.ended = True
                events.append(Failed(segment.key, error))
            budget -= segment.prefilled - before
        return events

    def _advance(self, segment: _Segment, budget: int) -> Sequence[EngineEvent]:
        if segment.transcript.silent:
            return self._finish(segment, FinishReason.STOP)
        if segment.hidden is None:
            self._prefill(segment, budget)
        elif segment.pending is not None:
            self._decode(segment, segment.pending)
        return self._draw(segment, segment.hidden) if segment.hidden is not None else ()

    def _prefill(self, segment: _Segment, budget: int) -> None:
        """Append ready prompt rows; sets `hidden` when the prompt is complete."""
        transcript, total = segment.transcript, segment.transcript.prompt_rows
        start = segment.prefilled
        stop = min(transcript.ready_rows, start + budget)
        if stop == start or total is None:
            return
        if segment.cache is None:
            segment.cache = self._model.new_cache(total + FRAMES_RESERVED)
        rows = self._model.rows.prompt(transcript, start, stop, segment.voice)
        states = self._model.forward(rows, segment.cache)
        segment.prefilled = stop
        if stop == total:
            segment.hidden = states[-1:]
            room = self._context_limit - total + 1
            segment.sampling = replace(
                segment.sampling, max_tokens=min(segment.sampling.max_tokens, room)
            )

    def _decode(self, segment: _Segment, frame: Frame) -> None:
        """Append the row after `frame`: its codes and the text that has come for it."""
        token = segment.transcript.text(len(segment.drawn) - 1)
        assert token is not None
        assert segment.cache is not None
        row = frame.embedding + self._model.rows.text(token)
        segment.hidden = self._model.forward(row, segment.cache)
        segment.pending = None

    def _draw(self, segment: _Segment, hidden: Tensor) -> Sequence[EngineEvent]:
        """Draw the next group-0 code from the last state, and the frame that it starts."""
        model, step = self._model, len(segment.drawn)
        code = model.first_code(hidden, segment.sampling, segment.drawn)
        if code == model.stop_code:
            return self._finish(segment, FinishReason.STOP)
        if step + 1 == segment.sampling.max_tokens:
            return self._finish(segment, FinishReason.LENGTH)
        segment.drawn.append(code)
        segment.pending = model.frame(hidden, code, segment.sampling, step)
        codes = np.array([segment.pending.codes], dtype=np.uint16)
        return (Emitted(segment.key, CODES, step, {"codes": codes}),)

    def _finish(self, segment: _Segment, reason: FinishReason) -> Sequence[EngineEvent]:
        frames = len(segment.drawn)
        segment.ended = True
        return (
            Emitted(segment.key, CODES, frames, finish_reason=reason),
            Completed(segment.key, reason, segment.prefilled, frames),
        )
