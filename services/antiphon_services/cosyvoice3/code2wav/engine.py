"""The code2wav engine, which computes the audio of many segments concurrently.

The delivery setting of the `codes` edge determines how the audio is computed:

- If the edge is delivered whole, the flow attends to the entire utterance, so the engine decodes an
  utterance once its last code has arrived.
- If the edge is streamed, the flow processes one block at a time, and the engine emits samples
  whenever a block is complete. This mode is described in `mel_stream`.

The arrival times of codes make no difference.
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
"""The number of layer rows to compute per step.

At the released model size, 10 seconds of speech require 22,000 rows for each of 22 layers and 10
evaluations.
"""


class Code2WavEngine(LeastServedEngine):
    """An engine with the input edges `speaker_prompt` and `codes` and the output edge `audio`.

    `context_limit` is the maximum number of codes in an utterance, including the codes of the voice
    prompt.
    """

    def __init__(self, decoder: SpeechDecoder, *, context_limit: int, slots: int) -> None:
        super().__init__(CODE2WAV, slots=slots, step_work=ROWS_AT_A_TIME)
        self._decoder, self._context_limit = decoder, context_limit

    def open(self, key: SegmentKey, settings: SegmentSettings) -> UtteranceSegment:
        """Create a segment."""
        return UtteranceSegment(
            key=key,
            audio=AUDIO,
            wanted=AUDIO in settings.outputs,
            received=CheckedCodes(CODES, 1, CODE_ENTRIES, None),
            decoder=self._decoder,
            limit=self._context_limit,
            whole=CODES in settings.whole_inputs,
        )
