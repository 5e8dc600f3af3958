"""The talker's engine. In each step, it decodes one codec frame for each of many segments.

Prompts are prepared on worker threads, because tokenizing text and encoding reference recordings
take a long time. A step is one forward pass over all rows that are ready: parts of prompts, within
the limit of `antiphon_services.lm.frames`, and one row for every segment whose prompt is complete.
These segments sample a frame in the same step, and the engine emits it.

If a voice is cloned from the codes of a recording, the engine emits the recording's frames first,
to prime the decoder.

Draws are counted in the same way as in the vendor's `generate`, and there are at most `max_tokens`
of them. Each draw is a frame, except for the stop code and the last allowed draw. The first two
draws can't be the stop code.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from antiphon.pipelines.qwen3_tts import TALKER
from antiphon.runtime.engine import Emitted, EngineEvent, SegmentSettings
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.frames import PromptPart
from antiphon_services.lm.known_frames import KnownPart
from antiphon_services.lm.pending_step import PendingStep
from antiphon_services.lm.readback import Drawn
from antiphon_services.lm.spoken_engine import SpokenTextEngine
from antiphon_services.qwen3_tts.talker.front_end import SpeechFrontEnd
from antiphon_services.qwen3_tts.talker.prompt import Prompt
from antiphon_services.qwen3_tts.talker.talker import TtsTalker, TtsTurn
from antiphon_services.qwen3_tts.talker.tts_segment import INPUT, TtsSegment, TtsText
from antiphon_services.qwen3_tts.talker.voice_options import CheckpointKind, read_voice_options
from antiphon_services.stage.budgets import PREFILL_ROWS
from antiphon_services.stage.isolation import alone, together
from antiphon_services.stage.preparation import Preparations

CODES = "codes"


class TtsTalkerEngine(SpokenTextEngine[TtsSegment, TtsTalker]):
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
        super().__init__(
            model,
            context_limit,
            prefill_rows=prefill_rows,
            launch_ahead=launch_ahead,
            preparations=preparations,
        )
        self._front_end = front_end
        self._kind = kind

    @property
    def front_end(self) -> SpeechFrontEnd:
        """The component that turns requests into prompts."""
        return self._front_end

    def new_segment(self, key: SegmentKey, settings: SegmentSettings) -> TtsSegment:
        """Create a segment. Raises `InvalidArgument` if the checkpoint doesn't support the voice
        options.
        """
        manner = read_voice_options(settings.voice, settings.options, self._kind, self._model.ids)
        text = TtsText(
            INPUT,
            self._front_end.check_size,
            partial(self._front_end.prepare, manner=manner),
            0 if manner.reference is None else manner.reference.nbytes,
        )
        return TtsSegment(key, manner.voice, settings.sampling, text)

    def take_drawn(self, segment: TtsSegment, drawn: Drawn) -> Sequence[EngineEvent]:
        """Emit the sampled frame, or finish the segment."""
        return self.take_frame(segment, drawn, self._model.ids.stop)

    def begin(self, segment: TtsSegment, prompt: Prompt) -> Sequence[EngineEvent]:
        """Start to decode after a prepared prompt. If the prompt contains frames, they are emitted
        to prime the decoder.
        """
        assert segment.slot is not None
        segment.bound(self._context_limit)
        self._model.begin(segment.slot, prompt)
        if prompt.frames is None:
            return []
        return [Emitted(segment.key, CODES, 0, {"codes": prompt.frames}, prime=True)]

    def forward(
        self, segments: Sequence[TtsSegment], events: list[EngineEvent]
    ) -> PendingStep | None:
        """Make one call for the parts and draws of all segments. Returns None if there are no
        draws.
        """
        parts: dict[int | None, list[PromptPart[TtsText]]] = defaultdict(list)
        for part in self.take_parts(segments):
            parts[part.slot].append(part)
        known: dict[int | None, list[KnownPart[TtsText]]] = defaultdict(list)
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
