"""The state of a segment in code2wav: its voice, its utterances, and the emitted samples."""

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
    """The codes of one utterance that have arrived, with their marks, and whether they are
    complete.

    The samples of the first `sent` codes were emitted.
    """

    parts: list[Tensor] = field(default_factory=list)
    finished: bool = False
    count: int = 0
    sent: int = 0

    def add(self, codes: Tensor) -> None:
        """Add codes, uint16 [n]."""
        self.parts.append(codes)
        self.count += len(codes)

    @property
    def codes(self) -> Tensor:
        """All codes so far, uint16 [count]."""
        self.parts = [np.concatenate(self.parts or [np.empty(0, np.uint16)])]
        return self.parts[0]

    def send(self, count: int) -> Tensor:
        """Return the codes, uint16 [count, 1], whose samples are emitted now."""
        first, self.sent = self.sent, self.sent + count
        return self.codes[first : self.sent, None]


@dataclass(slots=True)
class UtteranceSegment(AudioSegment):
    """An admitted segment, whose utterances are decoded `whole` or streamed.

    `come` codes have arrived; the last of the `utterances` may be incomplete. `decoding` decodes
    the first utterance, and `work` is its current computation. `served` counts the rows computed so
    far, including earlier computations. `held` holds the samples of an incomplete code. `samples`
    counts the emitted samples.
    """

    whole: bool = field(kw_only=True)
    voice: ClonedVoice | None = None
    utterances: deque[SpokenCodes] = field(default_factory=lambda: deque([SpokenCodes()]))
    decoding: UtteranceDecoding | None = None
    work: Work[torch.Tensor] | None = None
    held: Tensor = field(default_factory=lambda: np.empty(0, np.float32))
    served: int = 0

    def accept_voice(self, chunk: InputChunk, decoder: SpeechDecoder) -> None:
        """Add the voice, which arrives in one chunk. Raises `DataLoss` or `InvalidArgument`."""
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
        """Add codes. Raises `DataLoss` or `InvalidArgument` for an invalid chunk."""
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
        """Mark the last utterance as complete. It is empty only in a segment without codes."""
        self.utterances[-1].finished = True
        if not self.utterances[-1].count:
            self.utterances.pop()
            self.close()

    def check_length(self, limit: int) -> None:
        """Raise `InvalidArgument` for an utterance with more than `limit` codes, including its
        prompt."""
        prompt = 0 if self.voice is None else len(self.voice.codes)
        longest = max((each.count for each in self.utterances), default=0)
        if prompt + longest > limit:
            raise _invalid(
                f"an utterance has {longest} and its voice {prompt}, at most {limit} are possible"
            )

    @property
    def ready(self) -> bool:
        """Whether an utterance can be decoded further."""
        if self.ended or not self.wanted or self.decoding is None:
            return False
        if self.work is not None:
            return True
        first = self.utterances[0]
        return self.decoding.ready(first.count, finished=first.finished)

    @property
    def complete(self) -> bool:
        """Whether all samples were emitted, but not the end of the segment."""
        return not self.ended and self.finish_reason is not None and not self.utterances

    @property
    def missing_edge(self) -> str | None:
        """The edge that the segment waits for, or None if it can be decoded further."""
        if self.ended or self.ready or self.complete:
            return None
        return VOICE if self.voice is None and self._codes_suffice else CODES

    @property
    def _codes_suffice(self) -> bool:
        """Whether the codes of the first utterance are complete."""
        return bool(self.utterances) and self.utterances[0].finished

    def advance(self, decoder: SpeechDecoder) -> list[EngineEvent]:
        """Continue to decode the first utterance, and emit the samples of complete codes.

        The segment must be `ready`.
        """
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
        """Start the first utterance, if there is one and its voice has arrived."""
        if self.voice is not None and self.utterances and self.decoding is None:
            self.decoding = decoder.open(self.voice, whole=self.whole)

    def _send(
        self, utterance: SpokenCodes, samples: Tensor, samples_per_code: int
    ) -> list[EngineEvent]:
        """Return events with the samples of complete codes. `samples` are float32 [n]."""
        joined = np.concatenate((self.held, samples))
        count = len(joined) // samples_per_code
        leaving, self.held = np.split(joined, [count * samples_per_code])
        if not count:
            return []
        position, self.samples = self.samples, self.samples + len(leaving)
        tensors = {"samples": leaving, CODES: utterance.send(count)}
        return [Emitted(self.key, AUDIO, position, tensors)]

    def close(self) -> None:
        """Stop decoding, and free its pages."""
        self.work = None
        if self.decoding is not None:
            self.decoding.close()
            self.decoding = None

    def fail(self) -> None:
        """Mark the segment as failed, and stop decoding."""
        AudioSegment.fail(self)
        self.close()


def _checked(chunk: InputChunk) -> Tensor:
    """Return the chunk's codes, uint16 [n]; n is 0 for a chunk that only finishes the segment."""
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
