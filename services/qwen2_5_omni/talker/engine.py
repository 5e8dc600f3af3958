"""The talker's engine: speech codes of many segments, one a step each.

A step is one forward over everything that can go on: parts of prompts, at most
`prefill_rows` rows of them, and one row of every segment whose next row has come. Those
draw a code in the same step and emit it. A row that has not come is waited for, never replaced.

Draws are counted as Hugging Face counts tokens. The pad id ends speech as the end id does; an id
that the decoder has no row for is spoken on from and never leaves; the last draw allowed is a
code like any other. So codes that the client has do not tell all draws: their rows go in together,
and each is drawn all the same, up to the first that is none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from antiphon.errors import Internal
from antiphon.pipelines.qwen2_5_omni import CODES, TALKER
from antiphon.runtime.engine import Emitted, EngineEvent, Failed, SegmentSettings
from antiphon.segment import FinishReason, SegmentKey
from services.budgets import PREFILL_ROWS
from services.lm.frame_engine import FrameEngine
from services.lm.known_frames import KnownPart
from services.qwen2_5_omni.talker.model import CodecTalker, DrawnCodes
from services.qwen2_5_omni.talker.rows import ThinkerRows
from services.qwen2_5_omni.talker.segment import SpokenSegment
from services.voices import choose_voice


class CodecTalkerEngine(FrameEngine[SpokenSegment]):
    """Implements `antiphon.runtime.engine.Engine`. Positions are bounded by `context_limit`."""

    role, edge = TALKER, CODES

    def __init__(
        self, model: CodecTalker, context_limit: int, *, prefill_rows: int = PREFILL_ROWS
    ) -> None:
        super().__init__(model, context_limit, prefill_rows)
        self._model = model

    def new_segment(self, key: SegmentKey, settings: SegmentSettings) -> SpokenSegment:
        """Raises `InvalidArgument` for an unknown voice; empty is the first."""
        voice = choose_voice(settings.voice, self._model.voices)
        return SpokenSegment(key, voice, settings.sampling, self._model.new_rows())

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Prefill a part, or make one code, of every segment that can and is not `held`."""
        events: list[EngineEvent] = []
        going = self.going(held)
        for segment in going:
            if segment.prompt.silent:
                events += self.finish(segment, FinishReason.STOP)
        going = [segment for segment in going if not segment.ended]
        parts = self.take_parts(going)
        drawing = [segment for segment in going if segment.can_draw]
        knowing = _next_known(going, self.left_of_budget(parts))
        if parts or drawing or knowing:
            known = [part for _, part in knowing]
            draws = [segment.next_draw() for segment in drawing]
            drawn, checked = self._model.step(parts, draws, known)
            for segment, each in zip(drawing, drawn, strict=True):
                events += self._take(segment, each)
            for (segment, _), run in zip(knowing, checked, strict=True):
                for each in run:
                    segment.drawn()
                    events += self._take(segment, each)
        return events

    def _take(self, segment: SpokenSegment, drawn: DrawnCodes) -> Sequence[EngineEvent]:
        """Emit what was drawn, or end with it."""
        if not drawn.decided:
            segment.ended = True
            reason = f"draw {segment.launched - 1}: the logits are not finite"
            return (Failed(segment.key, Internal(reason)),)
        segment.shown = segment.launched
        ids = self._model.ids
        if drawn.id_ in (ids.codec_pad, ids.codec_end):
            return self.finish(segment, FinishReason.STOP)
        events: list[EngineEvent] = []
        if drawn.id_ < ids.code_entries:
            codes = np.array([[drawn.id_]], np.uint16)
            events.append(Emitted(segment.key, CODES, segment.frames, {"codes": codes}))
            segment.frames += 1
        if segment.launched >= segment.sampling.max_tokens:
            events += self.finish(segment, FinishReason.LENGTH)
        return events


def _next_known(
    segments: Sequence[SpokenSegment], budget: int
) -> list[tuple[SpokenSegment, KnownPart[ThinkerRows]]]:
    """The rows of known codes that go in now, within the budget."""
    taken = []
    for segment in segments:
        if (part := segment.next_known(budget)) is not None:
            budget -= len(part.frames)
            taken.append((segment, part))
    return taken
