"""The talker's engine: decodes the speech codes of many segments, one code per segment and step.

Worker threads prepare the prompts, because tokenization and the encoding of a reference recording
take long. A step is one forward pass over the ready rows: parts of prompts, up to `prefill_rows`
rows, and one row of every segment whose prompt is complete. These segments sample a code in the
same step, and the engine emits it. The engine first emits the voice, in one chunk.

Draws are counted as in the vendor's code. An id that is not a code ends the utterance. The last
allowed draw also ends it, and its code is spoken. A text that arrives in pieces is spoken as it
arrives, in turns (`interleaved.py`): a segment whose next turn lacks text waits for its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from antiphon.errors import InvalidArgument
from antiphon.pipelines.cosyvoice3 import CODES, SPEECH_IDS, TALKER, VOICE
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, SegmentSettings
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.cosyvoice3.talker.front_end import UtteranceFrontEnd
from antiphon_services.cosyvoice3.talker.prompt import SpeechPrompt, Voice
from antiphon_services.cosyvoice3.talker.speech_segment import (
    SpeechSegment,
    TextPiece,
    UtteranceTexts,
)
from antiphon_services.cosyvoice3.talker.talker import SpeechTalker
from antiphon_services.cosyvoice3.talker.voice_options import check_sampling, read_voice
from antiphon_services.lm.readback import Drawn
from antiphon_services.lm.spoken_engine import JointSpokenEngine
from antiphon_services.stage.budgets import PREFILL_ROWS
from antiphon_services.stage.preparation import Preparations


class SpeechTalkerEngine(JointSpokenEngine[SpeechSegment]):
    """Implements `antiphon.runtime.engine.PreparingEngine`: input `input`, outputs `speaker_prompt`
    and `codes`."""

    role, edge = TALKER, CODES

    def __init__(
        self,
        model: SpeechTalker,
        front_end: UtteranceFrontEnd,
        context_limit: int,
        *,
        prefill_rows: int = PREFILL_ROWS,
        preparations: Preparations[SpeechPrompt | TextPiece] | None = None,
    ) -> None:
        super().__init__(model, context_limit, prefill_rows=prefill_rows, preparations=preparations)
        self._model = model
        self._front_end = front_end

    @property
    def front_end(self) -> UtteranceFrontEnd:
        """What makes prompts of requests."""
        return self._front_end

    @property
    def model(self) -> SpeechTalker:
        """The model that the engine steps."""
        return self._model

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment. Raises `InvalidArgument` for other outputs and for what `new_segment`
        rejects."""
        if settings.outputs != {VOICE, CODES}:
            raise InvalidArgument(
                f"outputs: the {TALKER} makes {VOICE!r} and {CODES!r}, "
                f"not {sorted(settings.outputs)}",
                field="outputs",
            )
        segment = self._segments[key] = self.new_segment(key, settings)
        segment.returns = key.segment > 0 or settings.live

    def new_segment(self, key: SegmentKey, settings: SegmentSettings) -> SpeechSegment:
        """Create a segment. Raises `InvalidArgument` for an unknown voice or unsupported
        sampling."""
        check_sampling(settings.sampling)
        voice = read_voice(settings.voice, settings.options, self._front_end.voices)
        return SpeechSegment(key, "", settings.sampling, UtteranceTexts(self._front_end, voice))

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the cost of the segment so far, also while it waits for more text."""
        completed = super().so_far(key)
        rows = max(completed.input_positions, self._segments[key].prefilled)
        return replace(completed, input_positions=rows)

    def begin(self, segment: SpeechSegment, prompt: SpeechPrompt | TextPiece) -> list[EngineEvent]:
        """Start decoding after prepared prompts or a piece of the text, and emit the voice once."""
        if isinstance(prompt, SpeechPrompt):
            assert segment.slot is not None
            self._model.begin(segment.slot, segment.prompt)
            return [_voice(segment, prompt.voice)]
        self.prepare(segment)
        opened = prompt.opened
        events = [] if opened is None else [_voice(segment, opened.voice)]
        return events + self._begin_turn(segment)

    def _begin_turn(self, segment: SpeechSegment) -> list[EngineEvent]:
        """Continue after more text, if it has arrived. Finishes the segment if no positions are
        left."""
        if not segment.prompt.next_turn(segment.launched):
            return []
        if segment.prompt.current.most_draws == segment.launched:
            return self.finish(segment, FinishReason.LENGTH)
        assert segment.slot is not None
        self._model.begin(segment.slot, segment.prompt)
        return []

    def take_drawn(self, segment: SpeechSegment, drawn: Drawn) -> Sequence[EngineEvent]:
        """Emit the sampled code. At the end of an utterance, start the next one or finish the
        segment."""
        if not drawn.decided:
            return self.undecided(segment)
        segment.shown = segment.launched
        events: list[EngineEvent] = []
        id_ = int(drawn.ids[0])
        ends = id_ >= SPEECH_IDS
        if not ends and (code := segment.taken(id_)) is not None:
            codes = np.array([[code]], np.uint16)
            events.append(Emitted(segment.key, CODES, segment.frames - 1, {CODES: codes}))
        reason = FinishReason.STOP if ends else segment.limit
        if reason is None:
            return events
        if segment.asks(forced=not ends):
            return events + self._begin_turn(segment)
        if segment.next_utterance():
            assert segment.slot is not None
            self._model.begin(segment.slot, segment.prompt)
            return events
        return events + self.finish(segment, reason)


def _voice(segment: SpeechSegment, voice: Voice) -> EngineEvent:
    tensors = {"speaker": voice.speaker, "prompt_codes": voice.codes, "prompt_mel": voice.mel}
    return Emitted(segment.key, VOICE, 0, tensors, FinishReason.STOP)
