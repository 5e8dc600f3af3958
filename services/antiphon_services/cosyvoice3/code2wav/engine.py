"""Code2wav's engine: computes the audio of many segments.

If the edge `codes` is delivered whole, the flow attends to a whole utterance, and the engine
decodes an utterance after its last code has arrived. If the edge is streamed, the flow computes
block after block, and the engine emits samples when blocks are complete; see `mel_stream`. The
delivery determines the mode, not the arrival times of codes.
"""

from __future__ import annotations

from antiphon.pipelines.cosyvoice3 import AUDIO, CODE2WAV, CODES
from antiphon.runtime.engine import SegmentSettings
from antiphon.values.segment import SegmentKey
from antiphon_services.cosyvoice3.code2wav.decoder import SpeechDecoder
from antiphon_services.cosyvoice3.code2wav.utterance_segment import CODE_ENTRIES, UtteranceSegment
from antiphon_services.vocoder.least_served import LeastServedEngine
from antiphon_services.vocoder.received_codes import CheckedCodes

ROWS_AT_A_TIME = 16_384
"""The rows of one layer to compute in a step. At the released sizes, 10 s of speech have 22,000
rows for each of 22 layers and 10 evaluations."""


class Code2WavEngine(LeastServedEngine):
    """Inputs `speaker_prompt` and `codes`, output `audio`.

    `context_limit` is the maximum number of codes of an utterance and its voice's prompt.
    """

    def __init__(self, decoder: SpeechDecoder, *, context_limit: int, slots: int) -> None:
        super().__init__(CODE2WAV, slots=slots, step_work=ROWS_AT_A_TIME)
        self._decoder, self._context_limit = decoder, context_limit

    def open(self, key: SegmentKey, settings: SegmentSettings) -> UtteranceSegment:
        """Return a new segment."""
        return UtteranceSegment(
            key=key,
            audio=AUDIO,
            wanted=AUDIO in settings.outputs,
            received=CheckedCodes(CODES, 1, CODE_ENTRIES, None),
            decoder=self._decoder,
            limit=self._context_limit,
            whole=CODES in settings.whole_inputs,
        )
