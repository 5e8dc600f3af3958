"""The talker's engine: decodes codec frames for many segments, one frame per segment and step.

A step is one forward pass over the ready rows: chunks of prompts, up to `prefill_rows` rows, and
one row of every segment whose next text id has arrived. These segments sample a frame in the same
step, and the engine emits it before the next text id arrives. A segment without a next text id
waits; silence never replaces a late id. A long prompt delays the other segments only by its share
of a step.

Draws are counted as Hugging Face counts tokens. Of at most `max_tokens` draws, a draw is the stop
code (the segment finishes), the last allowed draw (the segment finishes without a frame), or a
frame.

Codes do not depend on the other segments in the batch. In float32 on a CPU with one thread, the
results are bitwise equal too: see `antiphon_services.lm.decoder` and `antiphon_services.lm.frames`.
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
        """Create a segment. An empty voice means the first. Raises `InvalidArgument` for an unknown
        voice."""
        voice = choose_voice(settings.voice, self._model.voices)
        return TalkerSegment(key, voice, settings.sampling, self._model.new_prompt())

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Add a chunk of input; see `FrameEngine.accept`."""
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
        """Emit the sampled frame, or finish the segment."""
        return self.take_frame(segment, drawn, self._model.stop_code)


def _next_draw(segment: TalkerSegment) -> FrameDraw[int]:
    """Return the next row and draw of a segment, and mark them as launched."""
    return segment.launch(segment.take_text(segment.launched))
