"""A segment as code2wav sees it: its voice, its utterances, and what has left."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch

from antiphon.errors import DataLoss, InvalidArgument
from antiphon.pipelines.cosyvoice3 import (
    AUDIO,
    CODES,
    FIRST,
    FRAMES_PER_CODE,
    SPEECH_IDS,
    VOICE,
)
from antiphon.runtime.engine import Emitted, EngineEvent, InputChunk
from antiphon.transport.device_edge import host_array
from antiphon.values.chunk import Tensor
from antiphon_services.cosyvoice3.code2wav.decoder import SpeechDecoder, UtteranceDecoding
from antiphon_services.cosyvoice3.code2wav.flow import ClonedVoice
from antiphon_services.flow.work import Work
from antiphon_services.vocoder.audio_segment import AudioSegment

CODE_ENTRIES = FIRST + SPEECH_IDS


@dataclass(slots=True)
class SpokenCodes:
    """The codes of one utterance that have come, marked as they came, and whether they are all.

    Samples of the first `sent` codes have left.
    """

    parts: list[Tensor] = field(default_factory=list)
    finished: bool = False
    count: int = 0
    sent: int = 0

    def add(self, codes: Tensor) -> None:
        """More codes have come, uint16 [n]."""
        self.parts.append(codes)
        self.count += len(codes)

    @property
    def codes(self) -> Tensor:
        """uint16 [count]."""
        self.parts = [np.concatenate(self.parts or [np.empty(0, np.uint16)])]
        return self.parts[0]

    def send(self, count: int) -> Tensor:
        """uint16 [count, 1]: the codes whose samples leave now."""
        first, self.sent = self.sent, self.sent + count
        return self.codes[first : self.sent, None]


@dataclass(slots=True)
class UtteranceSegment(AudioSegment):
    """An admitted segment, whose utterances are decoded `whole` or while their codes come.

    `come` codes have arrived, those of the last of the `utterances` perhaps not all. The first
    utterance is decoded by `decoding`, whose current `work` has done `served` rows so far, earlier
    ones included. Of a code that is not complete, samples wait in `held`. `samples` have left.
    """

    whole: bool = field(kw_only=True)
    voice: ClonedVoice | None = None
    utterances: deque[SpokenCodes] = field(default_factory=lambda: deque([SpokenCodes()]))
    decoding: UtteranceDecoding | None = None
    work: Work[torch.Tensor] | None = None
    held: Tensor = field(default_factory=lambda: np.empty(0, np.float32))
    served: int = 0

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
        self._open(decoder)

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
                if len(part) and part[0] >= FIRST and self.utterances[-1].count:
                    self._end_utterance()
                    self.utterances.append(SpokenCodes())
                if len(part):
                    self.utterances[-1].add(part)
        if chunk.segment_finished:
            self._end_utterance()

    def _end_utterance(self) -> None:
        """The last utterance has all its codes. It has none in a segment without codes alone."""
        self.utterances[-1].finished = True
        if not self.utterances[-1].count:
            self.utterances.pop()
            self.close()

    def check_length(self, limit: int) -> None:
        """Raise `InvalidArgument` for an utterance of more codes than `limit`, its prompt's
        included."""
        prompt = 0 if self.voice is None else len(self.voice.codes)
        longest = max((each.count for each in self.utterances), default=0)
        if prompt + longest > limit:
            raise _invalid(
                f"an utterance has {longest} and its voice {prompt}, at most {limit} are possible"
            )

    @property
    def ready(self) -> bool:
        """Whether there is something to decode."""
        if self.ended or not self.wanted or self.decoding is None:
            return False
        if self.work is not None:
            return True
        first = self.utterances[0]
        return self.decoding.ready(first.count, finished=first.finished)

    @property
    def complete(self) -> bool:
        """Whether all has left but the end."""
        return not self.ended and self.finish_reason is not None and not self.utterances

    @property
    def missing_edge(self) -> str | None:
        """The edge that it waits for; None while there is something to do."""
        if self.ended or self.ready or self.complete:
            return None
        return VOICE if self.voice is None and self._codes_suffice else CODES

    @property
    def _codes_suffice(self) -> bool:
        """Whether more codes would not help."""
        return bool(self.utterances) and self.utterances[0].finished

    def advance(self, decoder: SpeechDecoder) -> list[EngineEvent]:
        """Decode some more of the first utterance. Samples leave as they are made, in whole codes.
        Must be `ready`."""
        assert self.decoding is not None
        utterance = self.utterances[0]
        if self.work is None:
            codes = utterance.codes % FIRST
            self.work = self.decoding.advance(codes, finished=utterance.finished)
        try:
            self.served += next(self.work)
        except StopIteration as made:
            self.work = None
            events = self._send(utterance, host_array(made.value), decoder.samples_per_code)
            if self.decoding.done:
                self.utterances.popleft()
                self.close()
                self._open(decoder)
            return events
        return []

    def _open(self, decoder: SpeechDecoder) -> None:
        """Begin the first utterance, if there is one and its voice has come."""
        if self.voice is not None and self.utterances and self.decoding is None:
            self.decoding = decoder.open(self.voice, whole=self.whole)

    def _send(
        self, utterance: SpokenCodes, samples: Tensor, samples_per_code: int
    ) -> list[EngineEvent]:
        """Samples float32 [n] that were made; those of whole codes leave."""
        joined = np.concatenate((self.held, samples))
        count = len(joined) // samples_per_code
        leaving, self.held = np.split(joined, [count * samples_per_code])
        if not count:
            return []
        position, self.samples = self.samples, self.samples + len(leaving)
        tensors = {"samples": leaving, CODES: utterance.send(count)}
        return [Emitted(self.key, AUDIO, position, tensors)]

    def close(self) -> None:
        """Stop decoding, and give back what that holds."""
        self.work = None
        if self.decoding is not None:
            self.decoding.close()
            self.decoding = None

    def fail(self) -> None:
        """No more comes of it."""
        AudioSegment.fail(self)
        self.close()


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
