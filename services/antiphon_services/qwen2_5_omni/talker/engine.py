"""The talker's engine. In each step, it decodes one speech code for each of many segments.

A step is one forward pass over all rows that are ready: parts of prompts, with a total of up to
`prefill_rows` rows, and one row for every segment whose next row has arrived. These segments sample
a code in the same step, and the engine emits it. If a segment's next row hasn't arrived, the
segment waits. Nothing is used as a substitute for a late row.

Draws are counted in the same way as Hugging Face counts tokens. Speech ends with either the pad ID
or the end ID. If token2wav has no row for an ID, the talker continues after it without emitting it.
The last allowed draw is an ordinary code. This means that the client's codes don't determine all
draws. The rows of known codes are therefore computed together, and each of these codes is sampled
again, up to the first draw that isn't a code.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.pipelines.qwen2_5_omni import CODES, TALKER
from antiphon.runtime.engine import Emitted, EngineEvent, SegmentSettings
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.lm.frame_engine import FrameEngine
from antiphon_services.lm.known_frames import KnownPart
from antiphon_services.lm.pending_step import PendingStep
from antiphon_services.lm.readback import Drawn
from antiphon_services.qwen2_5_omni.talker.model import CodecTalker
from antiphon_services.qwen2_5_omni.talker.rows import ThinkerRows
from antiphon_services.qwen2_5_omni.talker.spoken_segment import SpokenSegment
from antiphon_services.stage.voices import choose_voice


class CodecTalkerEngine(FrameEngine[SpokenSegment, CodecTalker]):
    """Implements `antiphon.runtime.engine.Engine`. `context_limit` is the maximum number of
    positions.
    """

    role, edge = TALKER, CODES

    def new_segment(self, key: SegmentKey, settings: SegmentSettings) -> SpokenSegment:
        """Create a segment. If no voice is specified, the first voice is used. Raises
        `InvalidArgument` if the voice is unknown.
        """
        voice = choose_voice(settings.voice, self._model.voices)
        return SpokenSegment(key, voice, settings.sampling, self._model.new_rows())

    def launch(
        self, segments: Sequence[SpokenSegment], events: list[EngineEvent]
    ) -> PendingStep | None:
        """Launch a step. If there are known codes, this waits for their draws. Implements
        `FrameEngine.launch`.
        """
        parts = self.take_parts(segments)
        drawing = [segment for segment in segments if segment.can_draw]
        knowing = _next_known(segments, self.left_of_budget(parts))
        if not (parts or drawing or knowing):
            return None
        known = [part for _, part in knowing]
        draws, checked = self._model.step(parts, [each.next_draw() for each in drawing], known)
        for (segment, _), run in zip(knowing, checked, strict=True):
            for each in run:
                segment.drawn()
                events += self.take_drawn(segment, each)
        return PendingStep(list(zip(drawing, draws, strict=True))) if drawing else None

    def take_drawn(self, segment: SpokenSegment, drawn: Drawn) -> Sequence[EngineEvent]:
        """Emit the sampled code, or finish the segment."""
        if not drawn.decided:
            return self.undecided(segment)
        segment.shown += 1
        ids, id_ = self._model.ids, int(drawn.ids[0])
        if id_ in (ids.codec_pad, ids.codec_end):
            return self.finish(segment, FinishReason.STOP)
        events: list[EngineEvent] = []
        if id_ < ids.code_entries:
            events.append(Emitted(segment.key, CODES, segment.frames, {CODES: drawn.codes}))
            segment.frames += 1
        if segment.shown >= segment.sampling.max_tokens:
            events += self.finish(segment, FinishReason.LENGTH)
        return events


def _next_known(
    segments: Sequence[SpokenSegment], budget: int
) -> list[tuple[SpokenSegment, KnownPart[ThinkerRows]]]:
    """Return the rows of known codes to compute in this step, within the row budget."""
    taken = []
    for segment in segments:
        if (part := segment.next_known(budget)) is not None:
            budget -= len(part.frames)
            taken.append((segment, part))
    return taken
