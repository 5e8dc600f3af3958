"""A segment as code2wav sees it: its voice, its utterances, and what has left."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from antiphon.chunk import Tensor
from antiphon.errors import DataLoss, InvalidArgument
from antiphon.pipelines.cosyvoice3 import (
    AUDIO,
    CODES,
    FIRST,
    FRAMES_PER_CODE,
    SPEECH_IDS,
    VOICE,
)
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, InputChunk
from antiphon.segment import FinishReason, SegmentKey
from antiphon.transport.device_edge import host_array
from services.cosyvoice3.code2wav.decoder import SpeechDecoder
from services.cosyvoice3.code2wav.flow import ClonedVoice
from services.flow.work import Work

CODE_ENTRIES = FIRST + SPEECH_IDS


@dataclass(slots=True)
class UtteranceSegment:
    """An admitted segment.

    `come` codes have arrived. Those of utterances that are complete wait in `utterances`, uint16
    [n], those of the last one in `growing`. The first utterance is being decoded by `work`, which
    has done `served` rows so far, those of earlier utterances included. `samples` have left.
    """

    key: SegmentKey
    wanted: bool
    voice: ClonedVoice | None = None
    come: int = 0
    utterances: deque[Tensor] = field(default_factory=deque)
    growing: list[Tensor] = field(default_factory=list)
    work: Work[object] | None = None
    served: int = 0
    samples: int = 0
    finish_reason: FinishReason | None = None
    ended: bool = False

    def accept_voice(self, chunk: InputChunk, decoder: SpeechDecoder) -> None:
        """Take the voice, which comes in one chunk. Raises `DataLoss` or `InvalidArgument`."""
        if self.voice is not None or not chunk.tensors:
            if chunk.tensors:
                raise DataLoss(f"{VOICE}: came twice", edge=VOICE)
            return
        try:
            speaker, codes, mel = (
                chunk.tensors[name] for name in ("speaker", "prompt_codes", "prompt_mel")
            )
        except KeyError as error:
            raise InvalidArgument(f"{VOICE}: {error.args[0]} is missing", edge=VOICE) from error
        if len(mel) != FRAMES_PER_CODE * len(codes):
            raise InvalidArgument(
                f"{VOICE}: {len(codes)} prompt_codes need {FRAMES_PER_CODE * len(codes)} frames of "
                f"prompt_mel, {len(mel)} came",
                edge=VOICE,
            )
        if codes.size and not 0 <= codes.min() <= codes.max() < SPEECH_IDS:
            raise InvalidArgument(f"{VOICE}: prompt_codes must be below {SPEECH_IDS}", edge=VOICE)
        if not (np.isfinite(speaker).all() and np.isfinite(mel).all()):
            raise InvalidArgument(f"{VOICE}: holds values that are not finite", edge=VOICE)
        self.voice = decoder.voice(speaker, codes, mel)

    def accept_codes(self, chunk: InputChunk) -> None:
        """Take codes. Raises `DataLoss` or `InvalidArgument` for a chunk that is no good."""
        if self.finish_reason is not None:
            raise DataLoss("codes: a chunk came after the segment's last", edge=CODES)
        if chunk.position != self.come:
            raise DataLoss(
                f"codes: code {self.come} was due, code {chunk.position} came", edge=CODES
            )
        codes = _checked(chunk)
        self.come += len(codes)
        self.finish_reason = chunk.finish_reason
        if self.wanted:
            for part in np.split(codes, np.flatnonzero(codes >= FIRST)):
                if len(part) and part[0] >= FIRST:
                    self._end_utterance()
                if len(part):
                    self.growing.append(part)
            if chunk.segment_finished:
                self._end_utterance()

    def _end_utterance(self) -> None:
        if self.growing:
            self.utterances.append(np.concatenate(self.growing))
            self.growing = []

    def check_length(self, limit: int) -> None:
        """Raise `InvalidArgument` for an utterance of more codes than `limit`, its prompt's
        included."""
        prompt = 0 if self.voice is None else len(self.voice.codes)
        waiting = (*self.utterances, *([np.concatenate(self.growing)] if self.growing else ()))
        longest = max(map(len, waiting), default=0)
        if prompt + longest > limit:
            raise _invalid(
                f"an utterance has {longest} and its voice {prompt}, at most {limit} are possible"
            )

    @property
    def ready(self) -> bool:
        """Whether there is something to decode."""
        return not self.ended and self.voice is not None and bool(self.utterances)

    @property
    def complete(self) -> bool:
        """Whether all has left but the end."""
        return not self.ended and self.finish_reason is not None and not self.utterances

    @property
    def missing_edge(self) -> str | None:
        """The edge that it waits for; None while there is something to do."""
        if self.ended or self.ready or self.complete:
            return None
        return VOICE if self.voice is None and self.utterances else CODES

    def advance(self, decoder: SpeechDecoder) -> list[EngineEvent]:
        """Decode some more of the first utterance; it leaves when it is made. Must be `ready`."""
        assert self.voice is not None
        codes = self.utterances[0]
        if self.work is None:
            self.work = decoder.decode(self.voice, codes % FIRST)
        try:
            self.served += next(self.work)
        except StopIteration as made:
            samples = host_array(made.value)
            self.utterances.popleft()
            self.work = None
            position, self.samples = self.samples, self.samples + len(samples)
            tensors = {"samples": samples, CODES: codes[:, None]}
            return [Emitted(self.key, AUDIO, position, tensors)]
        return []

    def end(self) -> list[EngineEvent]:
        """The segment's last events; it is `complete`."""
        assert self.finish_reason is not None
        self.ended = True
        last = Emitted(self.key, AUDIO, self.samples, finish_reason=self.finish_reason)
        return [*([last] if self.wanted else []), self.cost(self.finish_reason)]

    def cost(self, reason: FinishReason) -> Completed:
        """What it took and gave."""
        return Completed(self.key, reason, self.come, self.samples)

    def fail(self) -> None:
        """No more comes of it."""
        self.ended, self.work = True, None


def _checked(chunk: InputChunk) -> Tensor:
    """The chunk's codes, uint16 [n], n = 0 for a bare finish."""
    if chunk.segment_finished != (chunk.finish_reason is not None):
        raise DataLoss("codes: the last chunk, and no other, has a finish reason", edge=CODES)
    if not chunk.tensors and chunk.segment_finished:
        return np.empty(0, np.uint16)
    if set(chunk.tensors) != {CODES}:
        raise _invalid(f"one tensor of that name is due, {sorted(chunk.tensors)} came")
    codes = chunk.tensors[CODES]
    if codes.dtype != np.uint16 or codes.shape != (len(codes), 1):
        raise _invalid(f"must be uint16 [n, 1], not {codes.dtype} {list(codes.shape)}")
    if codes.size and codes.max() >= CODE_ENTRIES:
        raise _invalid(f"must be below {CODE_ENTRIES}, got {codes.max()}")
    return codes[:, 0]


def _invalid(message: str) -> InvalidArgument:
    return InvalidArgument(f"codes: {message}", field=CODES, edge=CODES)
