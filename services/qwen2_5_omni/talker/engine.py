"""The talker's engine: speech codes of many segments, one a step each.

A step is one forward over everything that can go on: parts of prompts, at most
`PREFILL_ROWS_PER_STEP` rows of them, and one row of every segment whose next row has come. Those
draw a code in the same step and emit it. A row that has not come is waited for, never replaced.

Draws are counted as Hugging Face counts tokens. The pad id ends speech as the end id does; an id
that the decoder has no row for is spoken on from and never leaves; the last draw allowed is a
code like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
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
from services.qwen2_5_omni.talker.ids import CODES
from services.qwen2_5_omni.talker.model import CodecTalker, DrawnCodes, PromptPart
from services.qwen2_5_omni.talker.segment import SpokenSegment

# Bounds how long the codes of other segments wait for a long prompt.
PREFILL_ROWS_PER_STEP = 256


class CodecTalkerEngine:
    """Implements `antiphon.runtime.engine.Engine`. Positions are bounded by `context_limit`."""

    def __init__(self, model: CodecTalker, context_limit: int) -> None:
        self._model = model
        self._context_limit = context_limit
        self._segments: dict[SegmentKey, SpokenSegment] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Raises `InvalidArgument` for an unknown voice (empty: the first) or output."""
        voices = self._model.voices
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
        rows = self._model.new_rows()
        self._segments[key] = SpokenSegment(key, voice, settings.sampling, rows)

    @torch.inference_mode()
    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store rows of prompt or reply; see `ThinkerRows`. The first chunk takes a slot.

        Raises `InvalidArgument` over the limit and `ResourceExhausted` without a slot.
        """
        segment = self._segments[key]
        segment.rows.accept(chunk)
        # With the voice's row and one of the reply.
        least = segment.rows.prompt_come + 2
        if least > self._context_limit:
            raise InvalidArgument(
                f"the prompt takes {least} talker positions of at most {self._context_limit}",
                field="messages",
            )
        if segment.rows.prompt_rows is not None:
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
            self._model.give_slot_back(segment.slot, segment.doubtful)

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Prefill a part, or make one code, of every segment that can and is not `held`."""
        free = [
            segment
            for segment in self._segments.values()
            if not segment.ended and segment.key not in held
        ]
        events: list[EngineEvent] = []
        for segment in free:
            if segment.rows.silent:
                events += _finish(segment, FinishReason.STOP)
        going = [segment for segment in free if not segment.ended]
        parts = _take_parts(going)
        drawing = [segment for segment in going if segment.can_draw]
        if parts or drawing:
            drawn = self._model.step(parts, [segment.next_draw() for segment in drawing])
            for segment, each in zip(drawing, drawn, strict=True):
                events += self._take(segment, each)
        return events

    def _take(self, segment: SpokenSegment, drawn: DrawnCodes) -> Sequence[EngineEvent]:
        """Emit what was drawn, or end with it."""
        if not drawn.decided:
            segment.ended = True
            reason = f"draw {segment.drawn - 1}: the logits are not finite"
            return (Failed(segment.key, Internal(reason)),)
        segment.shown = segment.drawn
        ids = self._model.ids
        if drawn.id_ in (ids.codec_pad, ids.codec_end):
            return _finish(segment, FinishReason.STOP)
        events: list[EngineEvent] = []
        if drawn.id_ < ids.code_entries:
            codes = np.array([[drawn.id_]], np.uint16)
            events.append(Emitted(segment.key, CODES, segment.sent, {"codes": codes}))
            segment.sent += 1
        if segment.drawn >= segment.sampling.max_tokens:
            events += _finish(segment, FinishReason.LENGTH)
        return events


def _take_parts(segments: Collection[SpokenSegment]) -> list[PromptPart]:
    """The next parts of prompts, within the budget; whoever has had least comes first.

    So a short prompt is not behind a long one that came before it, and a long one goes
    on, since those before it are soon done.
    """
    budget, parts = PREFILL_ROWS_PER_STEP, []
    while waiting := [segment for segment in segments if segment.next_part_end]:
        segment = min(waiting, key=lambda each: each.prefilled)
        stop = segment.next_part_end
        assert stop is not None
        if stop - segment.prefilled > budget:
            break
        budget -= stop - segment.prefilled
        parts.append(segment.next_part())
    return parts


def _finish(segment: SpokenSegment, reason: FinishReason) -> Sequence[EngineEvent]:
    """The segment's last events."""
    segment.ended = True
    return (
        Emitted(segment.key, CODES, segment.sent, finish_reason=reason),
        Completed(segment.key, reason, segment.rows.prompt_rows or 0, segment.sent),
    )
