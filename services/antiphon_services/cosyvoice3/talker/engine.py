"""The talker engine, which decodes the speech codes of many segments.

Prompts are prepared on worker threads, because tokenizing text and encoding reference recordings
take a long time. Each step performs one forward pass, which includes up to `prefill_rows` prompt
rows and one row for each segment whose prompt is complete. Each of these segments samples one code,
which is emitted in the same step. A segment's first output is its voice, which is sent in a single
chunk.

Draws are counted in the same way as in the vendor's code. An utterance ends if the sampled token is
not a code, or after the maximum number of draws. In the latter case, the last code is still spoken.

If the text is streamed, it is spoken in turns while it arrives, as described in `interleaved.py`.
If there isn't enough text for the next turn, the segment waits for more input.
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


class SpeechTalkerEngine(JointSpokenEngine[SpeechSegment, SpeechTalker]):
    """An engine with the input edge `input` and the output edges `speaker_prompt` and `codes`.

    Implements `antiphon.runtime.engine.PreparingEngine`.
    """

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
        self._front_end = front_end

    @property
    def front_end(self) -> UtteranceFrontEnd:
        """The front end that creates prompts from requests."""
        return self._front_end

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment.

        Raises `InvalidArgument` if other outputs are requested, and the errors of `new_segment`.
        """
        if settings.outputs != {VOICE, CODES}:
            raise InvalidArgument(
                f"outputs: the {TALKER} only generates {VOICE!r} and {CODES!r}, got "
                f"{sorted(settings.outputs)}",
                field="outputs",
            )
        segment = self._segments[key] = self.new_segment(key, settings)
        segment.returns = key.segment > 0 or settings.live

    def new_segment(self, key: SegmentKey, settings: SegmentSettings) -> SpeechSegment:
        """Create a segment.

        Raises `InvalidArgument` if the voice is unknown or a sampling setting is not supported.
        """
        check_sampling(settings.sampling)
        voice = read_voice(settings.voice, settings.options, self._front_end.voices)
        return SpeechSegment(key, "", settings.sampling, UtteranceTexts(self._front_end, voice))

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the usage of the segment up to this point, including while it waits for more
        text.
        """
        completed = super().so_far(key)
        rows = max(completed.input_positions, self._segments[key].prefilled)
        return replace(completed, input_positions=rows)

    def begin(self, segment: SpeechSegment, prompt: SpeechPrompt | TextPiece) -> list[EngineEvent]:
        """Start decoding after the prompts or a piece of text have been prepared.

        The voice is emitted with the first piece.
        """
        if isinstance(prompt, SpeechPrompt):
            assert segment.slot is not None
            self._model.begin(segment.slot, segment.prompt)
            return [_voice(segment, prompt.voice)]
        self.prepare(segment)
        opened = prompt.opened
        events = [] if opened is None else [_voice(segment, opened.voice)]
        return events + self._begin_turn(segment)

    def _begin_turn(self, segment: SpeechSegment) -> list[EngineEvent]:
        """Continue if more text has arrived. Finish the segment if no positions are left."""
        if not segment.prompt.next_turn(segment.launched):
            return []
        if segment.prompt.current.most_draws == segment.launched:
            return self.finish(segment, FinishReason.LENGTH)
        assert segment.slot is not None
        self._model.begin(segment.slot, segment.prompt)
        return []

    def take_drawn(self, segment: SpeechSegment, drawn: Drawn) -> Sequence[EngineEvent]:
        """Emit the sampled code. At the end of an utterance, start the next one or finish the
        segment.
        """
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
