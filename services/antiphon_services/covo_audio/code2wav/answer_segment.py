"""The state of a code2wav segment: the codes received so far and the pending audio computation."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from antiphon.pipelines.covo_audio import CODES
from antiphon.runtime.engine import EngineEvent
from antiphon.transport.device_edge import host_array
from antiphon_services.covo_audio.code2wav.decoder import AnswerDecoder
from antiphon_services.flow.work import Work
from antiphon_services.vocoder.least_served import ServedSegment
from antiphon_services.vocoder.received_codes import ReceivedCodes


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
        """Compute part of the audio, and emit the audio once it is complete."""
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
