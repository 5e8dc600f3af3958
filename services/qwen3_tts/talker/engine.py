"""The talker's engine: a request's text to codec frames, of many segments, one each a step.

Prompts are made on threads beside the engine's: tokenising and encoding a reference recording
take long. A step is one forward over everything that can go on: parts of prompts, within the
budget of `services.lm.frames`, and one row of every segment whose prompt is in. Those draw a
frame in the same step and emit it.

The frames of a recording that is cloned by codes leave first, to prime the decoder.

Draws are counted as the vendor's `generate` counts them: draw n of at most `max_tokens` is the
stop code (never one of the first two), the last one allowed, or frame n-1.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence

from antiphon.pipelines.qwen3_tts import TALKER
from antiphon.runtime.engine import Emitted, EngineEvent, InputChunk, SegmentSettings
from antiphon.segment import SegmentKey
from services.budgets import PREFILL_ROWS
from services.isolation import alone, together
from services.lm.frame_engine import FrameEngine
from services.lm.frames import PromptPart
from services.lm.known_frames import KnownPart
from services.lm.pending_step import PendingStep
from services.lm.readback import Drawn
from services.preparation import Preparations, wait_for_one, wake_nobody
from services.qwen3_tts.talker.front_end import SpeechFrontEnd
from services.qwen3_tts.talker.manner import CheckpointKind, read_manner
from services.qwen3_tts.talker.prompt import Prompt
from services.qwen3_tts.talker.segment import SpokenText, TtsSegment
from services.qwen3_tts.talker.talker import TtsTalker, TtsTurn

CODES = "codes"


class TtsTalkerEngine(FrameEngine[TtsSegment]):
    """Implements `antiphon.runtime.engine.PreparingEngine`."""

    role, edge = TALKER, CODES

    def __init__(
        self,
        model: TtsTalker,
        front_end: SpeechFrontEnd,
        kind: CheckpointKind,
        context_limit: int,
        *,
        prefill_rows: int = PREFILL_ROWS,
        launch_ahead: bool = False,
        preparations: Preparations[Prompt] | None = None,
    ) -> None:
        super().__init__(model, context_limit, prefill_rows=prefill_rows, launch_ahead=launch_ahead)
        self._model = model
        self._front_end = front_end
        self._kind = kind
        self._preparations = preparations or Preparations[Prompt]()
        self._wake: Callable[[], None] = wake_nobody

    def new_segment(self, key: SegmentKey, settings: SegmentSettings) -> TtsSegment:
        """Raises `InvalidArgument` for a manner that the checkpoint does not have."""
        manner = read_manner(settings.voice, settings.options, self._kind, self._model.ids)
        text = SpokenText(self._front_end, manner)
        return TtsSegment(key, manner.voice, settings.sampling, text)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store the message, and start making the prompt when all of it is there.

        Raises `InvalidArgument` for one that cannot fit, `ResourceExhausted` without a slot.
        """
        super().accept(key, chunk)
        segment = self._segments[key]
        if segment.preparation is None:
            segment.preparation = segment.prompt.begin(key, self._preparations)
            if segment.preparation is not None:
                segment.preparation.add_done_callback(lambda _: self._wake())

    def prepares(self, key: SegmentKey) -> bool:
        """Whether the segment's prompt is being made."""
        preparation = self._segments[key].preparation
        return preparation is not None and not preparation.done()

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever a prompt was made."""
        self._wake = wake

    def close(self) -> None:
        """Make no more prompts."""
        self._preparations.close()

    def release(self, key: SegmentKey) -> None:
        """Forget the segment and what waits to be made for it, and give its slot back."""
        self._preparations.drop(key)
        super().release(key)

    def wait_for_input(self, segments: Sequence[TtsSegment]) -> None:
        """Wait for a prompt when there is nothing else to do."""
        if not any(segment.prompt.prompt_rows for segment in segments):
            wait_for_one([each.preparation for each in segments if each.preparation is not None])

    def launch(
        self, segments: Sequence[TtsSegment], events: list[EngineEvent]
    ) -> PendingStep | None:
        """One forward for all, after the prompts that were made have begun."""
        for segment in segments:
            if (made := segment.preparation) is not None and made.done():
                segment.preparation = None
                with alone(segment.key, events, segment.end):
                    events += self._begin(segment, made.result())
        return self._forward([each for each in segments if not each.ended], events)

    def take_drawn(self, segment: TtsSegment, drawn: Drawn) -> Sequence[EngineEvent]:
        """Emit what was drawn, or end with it."""
        return self.take_frame(segment, drawn, self._model.ids.stop)

    def _begin(self, segment: TtsSegment, prompt: Prompt) -> list[EngineEvent]:
        """Take the prompt over; what of it primes the decoder leaves."""
        assert segment.slot is not None
        segment.prompt.hold(prompt)
        segment.bound(self._context_limit)
        self._model.begin(segment.slot, prompt)
        if prompt.frames is None:
            return []
        return [Emitted(segment.key, CODES, 0, {"codes": prompt.frames}, prime=True)]

    def _forward(
        self, segments: Sequence[TtsSegment], events: list[EngineEvent]
    ) -> PendingStep | None:
        """One call for the parts and draws of all; None when it draws nothing."""
        parts: dict[int | None, list[PromptPart[SpokenText]]] = defaultdict(list)
        for part in self.take_parts(segments):
            parts[part.slot].append(part)
        known: dict[int | None, list[KnownPart[SpokenText]]] = defaultdict(list)
        for each in self.take_known(segments, list(itertools.chain(*parts.values()))):
            known[each.slot].append(each)
        work = []
        for segment in segments:
            draw = segment.next_draw() if segment.can_draw else None
            turn = TtsTurn(parts[segment.slot], known[segment.slot], draw)
            if turn.parts or turn.known or turn.draw:
                work.append((segment, turn))
        outcomes = together(self._model.step, [turn for _, turn in work]) if work else []
        draws = []
        for (segment, turn), outcome in zip(work, outcomes, strict=True):
            with alone(segment.key, events, segment.end):
                drawn = outcome()
                events += self.tell_known(turn.known)
                if drawn is not None:
                    draws.append((segment, drawn))
        return PendingStep(draws) if draws else None
