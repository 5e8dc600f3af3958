"""The state of a segment in code2wav: received codes, and the work on their audio."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from antiphon.errors import DataLoss, InvalidArgument
from antiphon.pipelines.covo_audio import AUDIO, CODE2WAV, CODE_ENTRIES, CODES
from antiphon.runtime.engine import Emitted, EngineEvent, InputChunk
from antiphon.transport.device_edge import host_array
from antiphon.values.chunk import Tensor
from antiphon_services.covo_audio.code2wav.decoder import AnswerDecoder
from antiphon_services.flow.work import Work
from antiphon_services.vocoder.audio_segment import AudioSegment, invalid_codes, read_codes


@dataclass(slots=True)
class AnswerSegment(AudioSegment):
    """An admitted segment, whose noise has this `noise_key`.

    `served` rows of layers have been computed for it. The audio leaves at once, with all codes.
    """

    noise_key: int = field(kw_only=True)
    parts: list[Tensor] = field(default_factory=list)
    work: Work[torch.Tensor] | None = None
    served: int = 0
    made: bool = False

    def accept(self, chunk: InputChunk, limit: int) -> None:
        """Add codes, `limit` of them in all. Raises `DataLoss` or `InvalidArgument`."""
        if chunk.edge != CODES:
            raise InvalidArgument(f"{CODE2WAV} has no input edge {chunk.edge!r}", edge=chunk.edge)
        if self.finish_reason is not None:
            raise DataLoss("codes: a chunk came after the segment's last", edge=CODES)
        if chunk.position != self.come:
            raise DataLoss(
                f"codes: code {self.come} was due, code {chunk.position} came", edge=CODES
            )
        if chunk.segment_finished != (chunk.finish_reason is not None):
            raise DataLoss("codes: the last chunk, and no other, has a finish reason", edge=CODES)
        codes = read_codes(chunk, 1, CODE_ENTRIES)
        if self.come + len(codes) > limit:
            raise invalid_codes(CODES, f"more than {limit} codes in a segment")
        self.come += len(codes)
        self.finish_reason = chunk.finish_reason
        if len(codes) and self.wanted:
            self.parts.append(codes)

    @property
    def ready(self) -> bool:
        """Whether there is audio to compute: all codes have come."""
        come = self.finish_reason is not None and bool(self.parts)
        return come and not (self.made or self.ended)

    @property
    def complete(self) -> bool:
        """Whether all has left but the end."""
        done = self.made or not self.parts
        return not self.ended and self.finish_reason is not None and done

    def advance(self, decoder: AnswerDecoder) -> list[EngineEvent]:
        """Compute a part of the audio, and emit it when complete. The segment must be `ready`."""
        if self.work is None:
            self.parts = [np.concatenate(self.parts)]
            self.work = decoder.decode(self.parts[0][:, 0], self.noise_key)
        try:
            self.served += next(self.work)
        except StopIteration as end:
            samples = host_array(end.value)
            self.work, self.made, self.samples = None, True, len(samples)
            return [Emitted(self.key, AUDIO, 0, {"samples": samples, CODES: self.parts[0]})]
        return []

    def fail(self) -> None:
        """Mark the segment as failed, and drop its work."""
        AudioSegment.fail(self)
        self.work = None
