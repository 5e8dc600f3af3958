"""The talker's engine: speech codes of many segments, one frame a step each.

A step is one forward over everything that can go on: chunks of prompts, at most
`prefill_rows` rows of them, and one row of every segment whose next text has
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
their digits do: see `services.lm.decoder` and `services.lm.frames`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from antiphon.errors import Internal
from antiphon.pipelines.qwen3_omni import TALKER
from antiphon.runtime.engine import Emitted, EngineEvent, Failed, InputChunk, SegmentSettings
from antiphon.segment import FinishReason, SegmentKey
from services.budgets import PREFILL_ROWS
from services.lm.frame_engine import FrameEngine
from services.lm.frames import FrameDraw
from services.qwen3_omni.talker.flight import Flight
from services.qwen3_omni.talker.model import Talker
from services.qwen3_omni.talker.readback import Drawn
from services.qwen3_omni.talker.segment import TalkerSegment
from services.voices import choose_voice

CODES = "codes"


class TalkerEngine(FrameEngine[TalkerSegment]):
    """Implements `antiphon.runtime.engine.Engine`. Positions are bounded by `context_limit`.

    With `launch_ahead` a step is launched before the frames of the one before are read.
    """

    role, edge = TALKER, CODES

    def __init__(
        self,
        model: Talker,
        context_limit: int,
        *,
        prefill_rows: int = PREFILL_ROWS,
        launch_ahead: bool = False,
    ) -> None:
        super().__init__(model, context_limit, prefill_rows)
        self._model = model
        self._launch_ahead = launch_ahead
        self._flight: Flight | None = None

    def new_segment(self, key: SegmentKey, settings: SegmentSettings) -> TalkerSegment:
        """Raises `InvalidArgument` for an unknown voice; empty is the first."""
        voice = choose_voice(settings.voice, self._model.voices)
        return TalkerSegment(key, voice, settings.sampling, self._model.new_prompt())

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Take a chunk in; see `FrameEngine.accept`."""
        super().accept(key, chunk)
        segment = self._segments[key]
        if (changed := segment.prompt.take_change()) is not None:
            segment.change(changed)

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Prefill a part, or make one frame, of every segment that can and is not `held`.

        With `launch_ahead`, what it launches is handed on by a later step.
        """
        free = self.going(held)
        events = self._hand_on(free)
        flight, self._flight = self._flight, None
        # A launch takes a while, and what is there already does not wait for it.
        if flight is None or not flight.landed:
            self._flight = self._launch(free, events)
        if not self._launch_ahead:
            flight, self._flight = self._flight, None
        if flight is not None:
            flight.land()
            events += self._hand_on(free)
        return events

    def _launch(
        self, segments: Collection[TalkerSegment], events: list[EngineEvent]
    ) -> Flight | None:
        """Start a step of those that can go on; None when it draws nothing."""
        going = [segment for segment in segments if not segment.ended]
        chunks = self.take_parts(going)
        known = self.take_known(going, chunks)
        drawing = [segment for segment in going if segment.can_draw]
        if not (chunks or known or drawing):
            return None
        readback = self._model.step(chunks, [_next_draw(segment) for segment in drawing], known)
        events += self.tell_known(known)
        return Flight(drawing, readback) if drawing else None

    def _hand_on(self, segments: Collection[TalkerSegment]) -> list[EngineEvent]:
        """What has been found out about segments that are not held."""
        events: list[EngineEvent] = []
        for segment in segments:
            if segment.ended:
                continue
            if segment.prompt.silent:
                events += self.finish(segment, FinishReason.STOP)
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
            return self.finish(segment, FinishReason.STOP)
        if step + 1 == segment.sampling.max_tokens:
            return self.finish(segment, FinishReason.LENGTH)
        segment.frames += 1
        return (Emitted(segment.key, CODES, step, {"codes": drawn.codes}),)


def _next_draw(segment: TalkerSegment) -> FrameDraw[int]:
    """The next row and draw of a segment that can, which are launched now."""
    return segment.launch(segment.take_text(segment.launched))
