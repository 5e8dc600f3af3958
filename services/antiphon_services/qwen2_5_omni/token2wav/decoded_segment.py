"""The state of a token2wav segment, which includes the received codes and the samples to emit."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from antiphon.pipelines.qwen2_5_omni import AUDIO
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, InputChunk
from antiphon.values.chunk import Tensor, Tensors
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen2_5_omni.token2wav.utterance import Utterance
from antiphon_services.vocoder.received_codes import CheckedCodes


@dataclass(slots=True)
class DecodedSegment:
    """A segment that has been admitted.

    `waiting` contains codes that are not part of the utterance yet. `codes` (uint16 [n, 1])
    contains codes whose samples haven't been emitted yet. `done` is the number of codes whose
    samples have been emitted. `made` contains samples that can be emitted.
    """

    key: SegmentKey
    utterance: Utterance
    wanted: bool
    samples_per_code: int
    received: CheckedCodes
    done: int = 0
    waiting: list[Tensor] = field(default_factory=list)
    codes: list[Tensor] = field(default_factory=list)
    made: Tensor | None = None
    samples: int = 0
    in_flight: bool = False
    ended: bool = False

    def accept(self, chunk: InputChunk) -> None:
        """Add codes. Raises `DataLoss` or `InvalidArgument` if the chunk is invalid."""
        codes = self.received.accept(chunk)
        if self.wanted and len(codes):
            self.waiting.append(codes)
            self.codes.append(codes)

    @property
    def ready(self) -> bool:
        """Whether a call can compute samples for the segment."""
        if self.ended or self.in_flight or self.made is not None or not self.wanted:
            return False
        count = sum(map(len, self.waiting))
        return self.utterance.ready_with(count, finished=self.received.finished)

    @property
    def behind(self) -> int:
        """The number of codes whose samples haven't been emitted."""
        return self.received.count - self.done

    @property
    def can_hand_on(self) -> bool:
        """Whether samples or the end of the segment can be emitted."""
        if self.ended or self.in_flight:
            return False
        return self.made is not None or (self.received.finished and not self.ready)

    def launch(self) -> Utterance:
        """Return the utterance, including all codes received so far, for use in a call. The segment
        must be `ready`.
        """
        joined = np.concatenate([*self.waiting, np.empty((0, 1), np.uint16)])[:, 0]
        self.waiting.clear()
        codes = torch.from_numpy(joined.astype(np.int64))
        self.utterance.add(codes, finished=self.received.finished)
        self.in_flight = True
        return self.utterance

    def collect(self, samples: Tensor) -> None:
        """Store the samples (float32 [n]) that a call has computed."""
        self.made, self.in_flight = samples, False

    def hand_on(self) -> list[EngineEvent]:
        """Return the events for the samples and for the end of the segment."""
        made, self.made = self.made, None
        tensors = {} if made is None or not len(made) else self._with_codes(made)
        last = self.received.finish_reason if not self.ready else None
        events: list[EngineEvent] = []
        if self.wanted and (tensors or last):
            events.append(Emitted(self.key, AUDIO, self.samples, tensors, last))
        if tensors:
            self.samples += len(tensors["samples"])
            self.done += len(tensors["codes"])
        if last:
            self.ended = True
            events.append(self.cost(last))
        return events

    def cost(self, reason: FinishReason) -> Completed:
        """Return the number of codes and samples so far."""
        return Completed(self.key, reason, self.received.count, self.samples)

    def _with_codes(self, samples: Tensor) -> Tensors:
        """Return the samples with the codes from which they were computed."""
        joined = np.concatenate(self.codes)
        count = len(samples) // self.samples_per_code
        self.codes = [joined[count:]]
        return {"samples": samples, "codes": joined[:count]}
