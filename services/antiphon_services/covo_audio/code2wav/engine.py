"""The code2wav engine, which computes the audio of many answers concurrently.

The audio of an answer is computed after its last code has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from antiphon.pipelines.covo_audio import AUDIO, CODE2WAV, CODE_ENTRIES, CODES
from antiphon.runtime.engine import EngineEvent, SegmentSettings
from antiphon.transport.device_edge import host_array
from antiphon.values.segment import SegmentKey
from antiphon_services.covo_audio.code2wav.decoder import AnswerDecoder
from antiphon_services.flow.work import Work
from antiphon_services.vocoder.least_served import LeastServedEngine, ServedSegment
from antiphon_services.vocoder.received_codes import ReceivedCodes

ROWS_AT_A_TIME = 16_384
"""The number of layer rows to compute per step.

At the released model size, 10 seconds of speech require 4,300 rows for each of 12 layers and 18
evaluations.
"""


@dataclass(slots=True, kw_only=True)
class AnswerSegment(ServedSegment):
    """An admitted segment.

    `noise_key` determines the noise. A unit of work is one row of one layer. The audio is emitted
    in a single chunk, together with all of the codes.
    """

    received: ReceivedCodes
    decoder: AnswerDecoder
    noise_key: int
    work: Work[torch.Tensor] | None = None
    made: bool = False

    @property
    def all_sent(self) -> bool:
        """Implements `ServedSegment.all_sent`."""
        return self.made or not self.received.count

    def advance(self) -> list[EngineEvent]:
        """Compute part of the audio and emit the audio once it is complete."""
        codes = self.received.codes
        if self.work is None:
            self.work = self.decoder.decode(codes[:, 0], self.noise_key)
        try:
            self.served += next(self.work)
        except StopIteration as end:
            self.work, self.made = None, True
            return self.emit(host_array(end.value), **{CODES: codes})
        return []

    def close(self) -> None:
        """Discard the pending computation."""
        self.work = None


class AnswerEngine(LeastServedEngine):
    """An engine with the input edge `codes` and the output edge `audio`.

    `context_limit` is the maximum number of codes in a segment. The sampling seed of a segment
    determines its noise.
    """

    def __init__(self, decoder: AnswerDecoder, *, context_limit: int, slots: int) -> None:
        super().__init__(CODE2WAV, slots=slots, step_work=ROWS_AT_A_TIME)
        self._decoder, self._context_limit = decoder, context_limit

    def open(self, key: SegmentKey, settings: SegmentSettings) -> AnswerSegment:
        """Create a segment."""
        return AnswerSegment(
            key=key,
            audio=AUDIO,
            wanted=AUDIO in settings.outputs,
            received=ReceivedCodes(CODES, 1, CODE_ENTRIES, self._context_limit),
            decoder=self._decoder,
            noise_key=settings.sampling.seed,
        )
