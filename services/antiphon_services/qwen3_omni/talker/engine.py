"""The talker's engine: speech codes of many segments, one frame a step each.

A step is one forward over everything that can go on: chunks of prompts, at most
`prefill_rows` rows of them, and one row of every segment whose next text has
come. Those draw a frame in the same step and emit it. So a frame leaves at once, before
its successor's text is waited for; a text row that has not come is waited for, never
replaced; and a long prompt delays others by its share of a step.

Draws are counted as Hugging Face counts tokens: draw n of at most `max_tokens` is
the stop code (finish), the last one allowed (finish, no frame), or frame n-1.

Codes do not depend on who else is served. In float32 on a CPU with one thread not even
their digits do: see `antiphon_services.lm.decoder` and `antiphon_services.lm.frames`.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.pipelines.qwen3_omni import TALKER
from antiphon.runtime.engine import EngineEvent, InputChunk, SegmentSettings
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.frame_engine import FrameEngine
from antiphon_services.lm.frames import FrameDraw
from antiphon_services.lm.pending_step import PendingStep
from antiphon_services.lm.readback import Drawn
from antiphon_services.qwen3_omni.talker.model import Talker
from antiphon_services.qwen3_omni.talker.talker_segment import TalkerSegment
from antiphon_services.stage.budgets import PREFILL_ROWS
from antiphon_services.stage.voices import choose_voice

CODES = "codes"


class TalkerEngine(FrameEngine[TalkerSegment]):
    """Implements `antiphon.runtime.engine.Engine`; see `FrameEngine`."""

    role, edge = TALKER, CODES

    def __init__(
        self,
        model: Talker,
        context_limit: int,
        *,
        prefill_rows: int = PREFILL_ROWS,
        launch_ahead: bool = False,
    ) -> None:
        super().__init__(model, context_limit, prefill_rows=prefill_rows, launch_ahead=launch_ahead)
        self._model = model

    @property
    def model(self) -> Talker:
        """The model that the engine steps."""
        return self._model

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

    def launch(
        self, segments: Sequence[TalkerSegment], events: list[EngineEvent]
    ) -> PendingStep | None:
        """See `FrameEngine.launch`."""
        chunks = self.take_parts(segments)
        known = self.take_known(segments, chunks)
        drawing = [segment for segment in segments if segment.can_draw]
        if not (chunks or known or drawing):
            return None
        draws = self._model.step(chunks, [_next_draw(segment) for segment in drawing], known)
        events += self.tell_known(known)
        return PendingStep(list(zip(drawing, draws, strict=True))) if drawing else None

    def take_drawn(self, segment: TalkerSegment, drawn: Drawn) -> Sequence[EngineEvent]:
        """Emit what was drawn, or end with it."""
        return self.take_frame(segment, drawn, self._model.stop_code)


def _next_draw(segment: TalkerSegment) -> FrameDraw[int]:
    """The next row and draw of a segment that can, which are launched now."""
    return segment.launch(segment.take_text(segment.launched))
