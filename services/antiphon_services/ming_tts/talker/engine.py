"""The talker engine, which decodes frames of latents for many segments. Each step decodes one frame
per segment.

Prompts are prepared on worker threads, because tokenizing text and encoding reference recordings
take a long time. Each step performs one forward pass, which includes up to `prefill_rows` prompt
rows, frames that the client already has, and one row for each segment whose prompt is complete.
Each of these segments samples one frame, which is emitted in the same step.

The stop head reads the same state from which a frame is sampled. An utterance ends with the frame
at which the stop head stops, or after the maximum number of draws. In both cases, the last frame is
still spoken. The text's next utterance then starts in the same slot. If it hasn't arrived yet, the
segment waits for more input. The stop head also decides which utterance the client's known frames
belong to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from antiphon.errors import InvalidArgument
from antiphon.pipelines.ming_tts import FRAME_WIDTH, INPUT, LATENTS, TALKER
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, SegmentSettings
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.lm.frames import PromptPart
from antiphon_services.lm.known_frames import ANEW, KnownPart, known_latents
from antiphon_services.lm.pending_step import PendingStep
from antiphon_services.lm.spoken_engine import SpokenTextEngine
from antiphon_services.ming_tts.talker.front_end import LatentFrontEnd, LatentPrompts
from antiphon_services.ming_tts.talker.latent_segment import LatentSegment, LatentText
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


class MingTalkerEngine(SpokenTextEngine[LatentSegment, MingTalker]):
    """An engine with the input edge `text_edge` and the output edge `speech_latents`.

    Implements `antiphon.runtime.engine.PreparingEngine`. If `text_edge` is not `input`, it is the
    edge of a stage that generates the text, which is then read from the tensor `utf8`.
    """

    role, edge = TALKER, LATENTS

    def __init__(
        self,
        model: MingTalker,
        front_end: LatentFrontEnd,
        context_limit: int,
        *,
        text_edge: str = INPUT,
        prefill_rows: int = PREFILL_ROWS,
        preparations: Preparations[LatentPrompts] | None = None,
    ) -> None:
        # A step has to be read before it is known whether the frame is the last one, so steps are
        # not launched in advance.
        super().__init__(model, context_limit, prefill_rows=prefill_rows, preparations=preparations)
        self._front_end = front_end
        self.text_edge = text_edge

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment.

        Raises `InvalidArgument` if another output is requested, or if the history contains frames
        that cannot be drawn, as well as the errors of `new_segment`.
        """
        known = known_latents(settings.history, FRAME_WIDTH)
        super().admit(key, settings)
        self._segments[key].known = known

    def new_segment(self, key: SegmentKey, settings: SegmentSettings) -> LatentSegment:
        """Create a segment.

        Raises `InvalidArgument` if the voice or a sampling setting is not supported.
        """
        check_sampling(settings.sampling)
        voice = read_voice(
            settings.voice,
            settings.options,
            self._front_end.voices,
            stored=self._front_end.stores_voices,
        )
        text = LatentText(self._front_end, voice, self.text_edge)
        return LatentSegment(key, "", settings.sampling, text)

    def begin(self, segment: LatentSegment, prompt: LatentPrompts) -> Sequence[EngineEvent]:
        """Start the first of the prepared utterances, unless another one is still being spoken."""
        # More text may have arrived in the meantime.
        self.prepare(segment)
        return [] if segment.prompt.speaks else self._begin_utterance(segment)

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the usage of the segment up to this point, including all of its utterances."""
        return _with_all_rows(self._segments[key], super().so_far(key))

    def finish(self, segment: LatentSegment, reason: FinishReason) -> list[EngineEvent]:
        """Return the last events of the segment, with the rows of all of its utterances."""
        events = super().finish(segment, reason)
        return [
            _with_all_rows(segment, each) if isinstance(each, Completed) else each
            for each in events
        ]

    def forward(
        self, segments: Sequence[LatentSegment], events: list[EngineEvent]
    ) -> PendingStep | None:
        """Compute the prompt parts, known frames and draws of all segments in one call.

        Returns None if there are no draws.
        """
        all_parts = self.take_parts(segments)
        parts, known = by_slot(all_parts), by_slot(self.take_known(segments, all_parts))
        work = []
        for segment in segments:
            slot = segment.slot
            # The stop head at the last known frame decides whether a draw follows.
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
                if made.known_stops is not None:
                    events += self._take_known(segment, turn.known, made.known_stops)
                if made.drawn is not None:
                    draws_made.append((segment, made.drawn))
        return PendingStep(draws_made) if draws_made else None

    def take_drawn(self, segment: LatentSegment, drawn: LatentDrawn) -> Sequence[EngineEvent]:
        """Emit the frame and end its utterance if it is the last frame."""
        if not np.isfinite(drawn.frame).all():
            return self.undecided(segment)
        frame = Emitted(segment.key, LATENTS, segment.frames, {LATENTS: drawn.frame})
        segment.frames += 1
        return [frame, *self._end(segment, drawn.stop)]

    def _end(self, segment: LatentSegment, stop: Floats) -> list[EngineEvent]:
        """End the utterance if its last frame is a final one.

        `stop` contains the logits of the stop head at that frame.
        """
        if not np.isfinite(stop).all():
            return self.undecided(segment)
        segment.shown = segment.handed_on
        reason = _end_of_utterance(segment, segment.handed_on, stop)
        if reason is None:
            return []
        unsaid = segment.out_of_draws and not segment.prompt.is_last
        segment.cut = segment.cut or unsaid or reason is FinishReason.LENGTH
        if segment.out_of_draws:
            return self.finish(segment, segment.reason)
        segment.end_utterance(segment.frames)
        return self._begin_utterance(segment)

    def _begin_utterance(self, segment: LatentSegment) -> list[EngineEvent]:
        """Start the next utterance, or finish the segment after the last one."""
        if segment.prompt.go_on():
            assert segment.slot is not None
            segment.bound(self._context_limit)
            self._model.begin(segment.slot, segment.prompt.current)
            return []
        if not segment.prompt.complete:
            return []
        if segment.frames < len(segment.known):
            raise InvalidArgument(
                f"history.latents: has {len(segment.known)} frames, but the text only has "
                f"{segment.frames}; {ANEW}",
                field="history.latents",
            )
        return self.finish(segment, segment.reason)

    def _take_known(
        self, segment: LatentSegment, parts: Sequence[KnownPart[Any]], stops: Floats
    ) -> list[EngineEvent]:
        """Emit known frames as if they had been drawn, up to the end of their utterance.

        Frames after the end belong to the next utterance. `stops`, of shape [n, 2], contains the
        logits of the stop head at each frame.
        """
        frames = np.concatenate([each.frames for each in parts])
        first = segment.frames - len(frames)
        count = len(frames)
        if not segment.prompt.is_last:
            local = first - segment.drawn_before
            ends = (
                at + 1
                for at in range(len(frames))
                if _end_of_utterance(segment, local + at + 1, stops[at]) is not None
            )
            count = next(ends, count)
        segment.frames = first + count
        emitted = Emitted(segment.key, LATENTS, first, {LATENTS: frames[:count]})
        known = segment.frames == len(segment.known)
        ends_here = count < len(frames) or known or segment.handed_on == segment.most_frames
        return [emitted, *(self._end(segment, stops[count - 1]) if ends_here else [])]


def _end_of_utterance(segment: LatentSegment, frames: int, stop: Floats) -> FinishReason | None:
    """Return the reason why the current utterance ends after `frames` frames, or None if it
    continues.

    `stop` contains the logits of the stop head at the last frame.
    """
    if is_last(frames - 1, stop):
        return FinishReason.STOP
    return FinishReason.LENGTH if frames == segment.most_frames else None


def _with_all_rows(segment: LatentSegment, completed: Completed) -> Completed:
    rows = completed.input_positions + segment.prompt.rows_before
    return replace(completed, input_positions=rows)


def by_slot(parts: Iterable[Part]) -> dict[int | None, list[Part]]:
    """Group the parts by slot and preserve their order."""
    found: dict[int | None, list[Part]] = defaultdict(list)
    for part in parts:
        found[part.slot].append(part)
    return found
