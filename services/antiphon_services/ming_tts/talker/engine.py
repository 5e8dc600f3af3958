"""The talker's engine: decodes frames of latents of many segments, one frame per segment and step.

Worker threads prepare the prompts, because tokenization and the encoding of a reference recording
take long. A step is one forward pass over the ready rows: parts of prompts, up to `prefill_rows`
rows, frames that a client already has, and one row of every segment whose prompt is complete. These
segments sample a frame in the same step, and the engine emits it.

The stop head reads the state from which a frame is sampled. The frame at which it stops is spoken,
and so is the frame of the last allowed draw.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from antiphon.pipelines.ming_tts import FRAME_WIDTH, INPUT, LATENTS, TALKER
from antiphon.runtime.engine import Emitted, EngineEvent, SegmentSettings
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.lm.frames import PromptPart
from antiphon_services.lm.known_frames import KnownPart, known_latents
from antiphon_services.lm.pending_step import PendingStep
from antiphon_services.lm.spoken_engine import SpokenTextEngine
from antiphon_services.ming_tts.talker.front_end import LatentFrontEnd
from antiphon_services.ming_tts.talker.latent_segment import LatentSegment, LatentText
from antiphon_services.ming_tts.talker.prompt import LatentPrompt
from antiphon_services.ming_tts.talker.talker import (
    Floats,
    LatentDrawn,
    LatentTurn,
    MingTalker,
    is_last,
)
from antiphon_services.ming_tts.talker.voice_options import check_sampling, read_voice
from antiphon_services.stage.budgets import PREFILL_ROWS
from antiphon_services.stage.isolation import alone, together
from antiphon_services.stage.preparation import Preparations

Part = TypeVar("Part", PromptPart[Any], KnownPart[Any])


class MingTalkerEngine(SpokenTextEngine[LatentSegment]):
    """Implements `antiphon.runtime.engine.PreparingEngine`: `input` in, `speech_latents` out."""

    role, edge = TALKER, LATENTS

    def __init__(
        self,
        model: MingTalker,
        front_end: LatentFrontEnd,
        context_limit: int,
        *,
        prefill_rows: int = PREFILL_ROWS,
        preparations: Preparations[LatentPrompt] | None = None,
    ) -> None:
        # Whether a frame is the last one is known when it is read, so no step is launched ahead.
        super().__init__(model, context_limit, prefill_rows=prefill_rows, preparations=preparations)
        self._model = model
        self._front_end = front_end

    @property
    def model(self) -> MingTalker:
        """The model that the engine steps."""
        return self._model

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Raises `InvalidArgument` for settings that `new_segment` refuses, another output, or a
        history of frames that cannot be drawn."""
        known = known_latents(settings.history, FRAME_WIDTH)
        super().admit(key, settings)
        self._segments[key].known = known

    def new_segment(self, key: SegmentKey, settings: SegmentSettings) -> LatentSegment:
        """Raises `InvalidArgument` for a voice or a sampling that there is not."""
        check_sampling(settings.sampling)
        voice = read_voice(
            settings.voice,
            settings.options,
            self._front_end.voices,
            stored=self._front_end.stores_voices,
        )
        text = LatentText(
            INPUT,
            self._front_end.check_size,
            partial(self._front_end.prepare, request=voice),
            0 if voice.reference is None else voice.reference.nbytes,
        )
        return LatentSegment(key, "", settings.sampling, text)

    def begin(self, segment: LatentSegment, prompt: LatentPrompt) -> Sequence[EngineEvent]:
        """Take the prompt over."""
        assert segment.slot is not None
        segment.bound(self._context_limit)
        self._model.begin(segment.slot, prompt)
        return []

    def forward(
        self, segments: Sequence[LatentSegment], events: list[EngineEvent]
    ) -> PendingStep | None:
        """One call for the parts, known frames and draws of all; None when it draws nothing."""
        all_parts = self.take_parts(segments)
        parts, known = by_slot(all_parts), by_slot(self.take_known(segments, all_parts))
        work = []
        for segment in segments:
            slot = segment.slot
            # Whether there is a draw behind known frames depends on the stop head at the last one.
            draws = segment.can_draw and slot not in known
            draw = segment.next_draw() if draws else None
            turn = LatentTurn(parts.get(slot, ()), known.get(slot, ()), draw)
            if turn.parts or turn.known or turn.draw:
                work.append((segment, turn))
        outcomes = together(self._model.step, [turn for _, turn in work]) if work else []
        draws_made = []
        for (segment, turn), outcome in zip(work, outcomes, strict=True):
            with alone(segment.key, events, segment.end):
                made = outcome()
                events += self.tell_known(turn.known)
                if made.known_stop is not None and segment.frames == len(segment.known):
                    events += self._end(segment, made.known_stop)
                if made.drawn is not None:
                    draws_made.append((segment, made.drawn))
        return PendingStep(draws_made) if draws_made else None

    def take_drawn(self, segment: LatentSegment, drawn: LatentDrawn) -> Sequence[EngineEvent]:
        """Emit the frame, and end if it is the last one."""
        if not np.isfinite(drawn.frame).all():
            return self.undecided(segment)
        frame = Emitted(segment.key, LATENTS, segment.frames, {LATENTS: drawn.frame})
        segment.frames += 1
        return [frame, *self._end(segment, drawn.stop)]

    def _end(self, segment: LatentSegment, stop: Floats) -> list[EngineEvent]:
        """The segment's last events if its last frame ends it; `stop` are the stop head's logits
        there."""
        if not np.isfinite(stop).all():
            return self.undecided(segment)
        segment.shown = segment.frames
        if is_last(segment.frames - 1, stop):
            return self.finish(segment, FinishReason.STOP)
        if segment.frames == segment.most_frames:
            return self.finish(segment, FinishReason.LENGTH)
        return []


def by_slot(parts: Iterable[Part]) -> dict[int | None, list[Part]]:
    """The parts of each slot, in order."""
    found: dict[int | None, list[Part]] = defaultdict(list)
    for part in parts:
        found[part.slot].append(part)
    return found
