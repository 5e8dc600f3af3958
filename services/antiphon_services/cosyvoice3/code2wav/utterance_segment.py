"""The state of a code2wav segment: its voice, its utterances and the samples it has emitted."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch

from antiphon.errors import DataLoss, InvalidArgument
from antiphon.pipelines.cosyvoice3 import (
    CODES,
    FIRST,
    FRAMES_PER_CODE,
    SPEECH_IDS,
    VOICE,
)
from antiphon.runtime.engine import EngineEvent, InputChunk
from antiphon.transport.device_edge import host_array
from antiphon.values.chunk import Tensor
from antiphon_services.cosyvoice3.code2wav.decoder import SpeechDecoder, UtteranceDecoding
from antiphon_services.cosyvoice3.code2wav.flow import ClonedVoice
from antiphon_services.flow.work import Work
from antiphon_services.vocoder.least_served import ServedSegment
from antiphon_services.vocoder.received_codes import invalid_codes

CODE_ENTRIES = FIRST + SPEECH_IDS


@dataclass(slots=True)
class SpokenCodes:
    """The codes of one utterance that have arrived so far, including start marks.

    `finished` is true if the codes are complete. The samples of the first `sent` codes have already
    been emitted.
    """

    parts: list[Tensor] = field(default_factory=list)
    finished: bool = False
    count: int = 0
    sent: int = 0

    def add(self, codes: Tensor) -> None:
        """Append codes, which is a uint16 array of shape [n]."""
        self.parts.append(codes)
        self.count += len(codes)

    @property
    def codes(self) -> Tensor:
        """All codes received so far, as a uint16 array of shape [count]."""
        self.parts = [np.concatenate(self.parts or [np.empty(0, np.uint16)])]
        return self.parts[0]

    def send(self, count: int) -> Tensor:
        """Mark the next `count` codes as sent and return them, as a uint16 array of shape [count,
        1].
        """
        first, self.sent = self.sent, self.sent + count
        return self.codes[first : self.sent, None]


@dataclass(slots=True, kw_only=True)
class UtteranceSegment(ServedSegment):
    """An admitted segment.

    If `whole` is true, each utterance is decoded at once. Otherwise, utterances are streamed. Only
    the last entry of `utterances` may be incomplete. `limit` is the maximum number of codes in an
    utterance, including the codes of the voice. `decoding` is the decoder state of the first
    utterance, and `work` is its current computation. `held` contains samples that do not yet make
    up a complete code. A unit of work is one row of one layer.
    """

    decoder: SpeechDecoder
    limit: int
    whole: bool
    voice: ClonedVoice | None = None
    utterances: deque[SpokenCodes] = field(default_factory=lambda: deque([SpokenCodes()]))
    decoding: UtteranceDecoding | None = None
    work: Work[torch.Tensor] | None = None
    held: Tensor = field(default_factory=lambda: np.empty(0, np.float32))

    def accept(self, chunk: InputChunk) -> None:
        """Validate and store a voice or codes. Raises `DataLoss` or `InvalidArgument`."""
        if chunk.edge == VOICE:
            self._accept_voice(chunk)
        else:
            self._accept_codes(chunk)
        self._check_length()

    def _accept_voice(self, chunk: InputChunk) -> None:
        """Store the voice, which must arrive in a single chunk."""
        if self.voice is not None or not chunk.tensors:
            if chunk.tensors:
                raise DataLoss(f"{VOICE}: was received twice", edge=VOICE)
            return
        try:
            speaker, codes, mel = (
                chunk.tensors[name] for name in ("speaker", "prompt_codes", "prompt_mel")
            )
        except KeyError as error:
            raise InvalidArgument(f"{VOICE}: {error.args[0]} is missing", edge=VOICE) from error
        if len(mel) != FRAMES_PER_CODE * len(codes):
            raise InvalidArgument(
                f"{VOICE}: {len(codes)} prompt_codes need {FRAMES_PER_CODE * len(codes)} frames "
                f"of prompt_mel, got {len(mel)}",
                edge=VOICE,
            )
        if codes.size and not 0 <= codes.min() <= codes.max() < SPEECH_IDS:
            raise InvalidArgument(f"{VOICE}: prompt_codes must be below {SPEECH_IDS}", edge=VOICE)
        if not (np.isfinite(speaker).all() and np.isfinite(mel).all()):
            raise InvalidArgument(f"{VOICE}: contains values that are not finite", edge=VOICE)
        self.voice = self.decoder.voice(speaker, codes, mel)
        self._open()

    def _accept_codes(self, chunk: InputChunk) -> None:
        """Split the codes at the start of each utterance and store them."""
        codes = self.received.accept(chunk)[:, 0]
        if self.wanted:
            for part in np.split(codes, np.flatnonzero(codes >= FIRST)):
                if len(part) and part[0] >= FIRST and self.utterances[-1].count:
                    self._end_utterance()
                    self.utterances.append(SpokenCodes())
                if len(part):
                    self.utterances[-1].add(part)
        if self.received.finished:
            self._end_utterance()

    def _end_utterance(self) -> None:
        """Mark the last utterance as complete. It can only be empty if the segment has no codes."""
        self.utterances[-1].finished = True
        if not self.utterances[-1].count:
            self.utterances.pop()
            self.close()

    def _check_length(self) -> None:
        """Raise `InvalidArgument` if an utterance has more than `limit` codes."""
        prompt = 0 if self.voice is None else len(self.voice.codes)
        longest = max((each.count for each in self.utterances), default=0)
        if prompt + longest > self.limit:
            raise invalid_codes(
                CODES,
                f"an utterance has {longest} and its voice {prompt}; the maximum is {self.limit}",
            )

    @property
    def has_part(self) -> bool:
        """Implements `ServedSegment.has_part`."""
        if self.decoding is None:
            return False
        if self.work is not None:
            return True
        first = self.utterances[0]
        return self.decoding.ready(first.count, finished=first.finished)

    @property
    def all_sent(self) -> bool:
        """Implements `ServedSegment.all_sent`."""
        return not self.utterances

    @property
    def due_edge(self) -> str:
        """The edge that the segment waits for, which is either `speaker_prompt` or `codes`."""
        return VOICE if self.voice is None and self._codes_suffice else CODES

    @property
    def _codes_suffice(self) -> bool:
        """Whether all codes of the first utterance have arrived."""
        return bool(self.utterances) and self.utterances[0].finished

    def advance(self) -> list[EngineEvent]:
        """Continue to decode the first utterance and emit the samples of complete codes."""
        assert self.decoding is not None
        utterance = self.utterances[0]
        if self.work is None:
            codes = utterance.codes % FIRST
            self.work = self.decoding.advance(codes, finished=utterance.finished)
        try:
            self.served += next(self.work)
        except StopIteration as made:
            self.work = None
            events = self._send(utterance, host_array(made.value))
            if self.decoding.done:
                self.utterances.popleft()
                self.close()
                self._open()
            return events
        return []

    def _open(self) -> None:
        """Start decoding the first utterance if it and its voice have arrived."""
        if self.voice is not None and self.utterances and self.decoding is None:
            self.decoding = self.decoder.open(self.voice, whole=self.whole)

    def _send(self, utterance: SpokenCodes, samples: Tensor) -> list[EngineEvent]:
        """Return events with the samples of complete codes. `samples` is a float32 array of shape
        [n].
        """
        joined = np.concatenate((self.held, samples))
        count = len(joined) // self.decoder.samples_per_code
        leaving, self.held = np.split(joined, [count * self.decoder.samples_per_code])
        return self.emit(leaving, **{CODES: utterance.send(count)}) if count else []

    def close(self) -> None:
        """Stop decoding and release the pages."""
        self.work = None
        if self.decoding is not None:
            self.decoding.close()
            self.decoding = None
