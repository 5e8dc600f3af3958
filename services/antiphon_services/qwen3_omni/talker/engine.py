"""The talker's engine. In each step, it decodes one codec frame for each of many segments.

A step is one forward pass over all rows that are ready: parts of prompts, with a total of up to
`prefill_rows` rows, and one row for every segment whose next text ID has arrived. These segments
sample a frame in the same step, and the engine emits it without waiting for another text ID. If a
segment's next text ID hasn't arrived, the segment waits. Silence is never used as a substitute for
a late ID. A long prompt delays other segments only by its share of a step.

Draws are counted in the same way as Hugging Face counts tokens, and there are at most `max_tokens`
of them. Each draw is a frame, except for the stop code and the last allowed draw. In these two
cases, the segment finishes without another frame.

A segment's codes don't depend on the other segments in the batch. In float32 on a CPU with one
thread, the results are even bit-identical. See `antiphon_services.lm.decoder` and
`antiphon_services.lm.frames`.
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
from antiphon_services.stage.voices import choose_voice

CODES = "codes"


class TalkerEngine(FrameEngine[TalkerSegment, Talker]):
    """A `FrameEngine` for the talker."""

    role, edge = TALKER, CODES

    def new_segment(self, key: SegmentKey, settings: SegmentSettings) -> TalkerSegment:
        """Create a segment. If no voice is specified, the first voice is used. Raises
        `InvalidArgument` if the voice is unknown.
        """
        voice = choose_voice(settings.voice, self._model.voices)
        return TalkerSegment(key, voice, settings.sampling, self._model.new_prompt())

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Add a chunk of input. If it replaces rows that have already been prefilled, they are
        prefilled again.
        """
        super().accept(key, chunk)
        segment = self._segments[key]
        if (changed := segment.prompt.take_change()) is not None:
            segment.change(changed)

    def launch(
        self, segments: Sequence[TalkerSegment], events: list[EngineEvent]
    ) -> PendingStep | None:
        """Launch a step. Implements `FrameEngine.launch`."""
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
    """Return a segment's next row and draw, marking them as launched."""
    return segment.launch(segment.take_text(segment.launched))
