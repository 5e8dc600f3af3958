"""The state of a segment in token2wav, with the codes that it received and the samples that it
emitted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from antiphon.errors import DataLoss, InvalidArgument
from antiphon.pipelines.qwen2_5_omni import AUDIO, CODES
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, InputChunk
from antiphon.values.chunk import Tensor, Tensors
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen2_5_omni.token2wav.utterance import Utterance


@dataclass(slots=True)
class DecodedSegment:
    """A segment that has been admitted.

    `come` is the number of codes that have arrived. The codes in `waiting` are not part of the
    utterance yet. For the codes in `codes` (uint16 [n, 1]), no samples have been emitted yet.
    `done` is the number of codes whose samples have been emitted. `made` contains samples that can
    be emitted.
    """

    key: SegmentKey
    utterance: Utterance
    wanted: bool
    samples_per_code: int
    come: int = 0
    done: int = 0
    waiting: list[Tensor] = field(default_factory=list)
    codes: list[Tensor] = field(default_factory=list)
    made: Tensor | None = None
    samples: int = 0
    in_flight: bool = False
    finish_reason: FinishReason | None = None
    ended: bool = False

    def accept(self, chunk: InputChunk, *, entries: int, limit: int) -> None:
        """Add codes. Raises `DataLoss` or `InvalidArgument` if the chunk is invalid."""
        if chunk.edge != CODES:
            raise InvalidArgument(f"token2wav has no input edge {chunk.edge!r}", edge=chunk.edge)
        if self.finish_reason is not None:
            raise DataLoss("codes: a chunk came after the segment's last", edge=CODES)
        if chunk.position != self.come:
            raise DataLoss(
                f"codes: code {self.come} was due, code {chunk.position} came", edge=CODES
            )
        if chunk.segment_finished != (chunk.finish_reason is not None):
            raise DataLoss("codes: the last chunk, and no other, has a finish reason", edge=CODES)
        codes = _checked(chunk, entries)
        if self.come + len(codes) > limit:
            raise _invalid(f"more than {limit} codes in a segment")
        self.come += len(codes)
        self.finish_reason = chunk.finish_reason
        if self.wanted and len(codes):
            self.waiting.append(codes)
            self.codes.append(codes)

    @property
    def ready(self) -> bool:
        """Whether a call can compute samples for the segment."""
        if self.ended or self.in_flight or self.made is not None or not self.wanted:
            return False
        count = sum(map(len, self.waiting))
        return self.utterance.ready_with(count, finished=self.finish_reason is not None)

    @property
    def behind(self) -> int:
        """The number of codes whose samples have not been emitted."""
        return self.come - self.done

    @property
    def can_hand_on(self) -> bool:
        """Whether samples or the end of the segment can be emitted."""
        if self.ended or self.in_flight:
            return False
        return self.made is not None or (self.finish_reason is not None and not self.ready)

    def launch(self) -> Utterance:
        """Return the utterance with all codes that were received, for use in a call. The segment
        must be `ready`.
        """
        joined = np.concatenate([*self.waiting, np.empty((0, 1), np.uint16)])[:, 0]
        self.waiting.clear()
        codes = torch.from_numpy(joined.astype(np.int64))
        self.utterance.add(codes, finished=self.finish_reason is not None)
        self.in_flight = True
        return self.utterance

    def collect(self, samples: Tensor) -> None:
        """Store the samples of the call, float32 [n]."""
        self.made, self.in_flight = samples, False

    def hand_on(self) -> list[EngineEvent]:
        """Return the events for the samples and for the end of the segment."""
        made, self.made = self.made, None
        tensors = {} if made is None or not len(made) else self._with_codes(made)
        last = self.finish_reason if not self.ready else None
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
        """Return the current numbers of codes and samples."""
        return Completed(self.key, reason, self.come, self.samples)

    def _with_codes(self, samples: Tensor) -> Tensors:
        """Return the samples with the codes from which they were computed."""
        joined = np.concatenate(self.codes)
        count = len(samples) // self.samples_per_code
        self.codes = [joined[count:]]
        return {"samples": samples, "codes": joined[:count]}


def _checked(chunk: InputChunk, entries: int) -> Tensor:
    """Return the codes of the chunk as uint16 [n, 1]. `n` is 0 if the chunk only signals the end of
    the segment.
    """
    if not chunk.tensors and chunk.segment_finished:
        return np.empty((0, 1), np.uint16)
    if set(chunk.tensors) != {CODES}:
        raise _invalid(f"one tensor of that name is due, {sorted(chunk.tensors)} came")
    codes = chunk.tensors[CODES]
    if codes.dtype != np.uint16 or codes.shape != (len(codes), 1):
        raise _invalid(f"must be uint16 [n, 1], not {codes.dtype} {list(codes.shape)}")
    if codes.size and codes.max() >= entries:
        raise _invalid(f"must be below {entries}, got {codes.max()}")
    return codes


def _invalid(message: str) -> InvalidArgument:
    return InvalidArgument(f"codes: {message}", field=CODES, edge=CODES)
