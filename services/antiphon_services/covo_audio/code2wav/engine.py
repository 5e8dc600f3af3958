"""Code2wav's engine: computes the audio of many answers, each after its last code."""

from __future__ import annotations

from antiphon.pipelines.covo_audio import AUDIO, CODE2WAV, CODE_ENTRIES, CODES
from antiphon.runtime.engine import SegmentSettings
from antiphon.values.segment import SegmentKey
from antiphon_services.covo_audio.code2wav.answer_segment import AnswerSegment
from antiphon_services.covo_audio.code2wav.decoder import AnswerDecoder
from antiphon_services.vocoder.least_served import LeastServedEngine
from antiphon_services.vocoder.received_codes import ReceivedCodes

ROWS_AT_A_TIME = 16_384
"""The rows of one layer to compute in a step. At the released sizes, 10 s of speech have 4,300 rows
for each of 12 layers and 18 evaluations."""


class AnswerEngine(LeastServedEngine):
    """Input `codes`, output `audio`.

    `context_limit` is the maximum number of codes of a segment. The seed of a segment's sampling
    determines its noise.
    """

    def __init__(self, decoder: AnswerDecoder, *, context_limit: int, slots: int) -> None:
        super().__init__(CODE2WAV, slots=slots, step_work=ROWS_AT_A_TIME)
        self._decoder, self._context_limit = decoder, context_limit

    def open(self, key: SegmentKey, settings: SegmentSettings) -> AnswerSegment:
        """Return a new segment."""
        return AnswerSegment(
            key=key,
            audio=AUDIO,
            wanted=AUDIO in settings.outputs,
            received=ReceivedCodes(CODES, 1, CODE_ENTRIES, self._context_limit),
            decoder=self._decoder,
            noise_key=settings.sampling.seed,
        )
