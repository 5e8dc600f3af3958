"""Utterances of codes to samples, whole or while their codes come."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from antiphon.pipelines.cosyvoice3 import FRAMES_PER_CODE
from antiphon.values.chunk import Tensor as Array
from antiphon_services.cosyvoice3.code2wav.flow import ClonedVoice, MelFlow
from antiphon_services.cosyvoice3.code2wav.mel_stream import MelStream
from antiphon_services.cosyvoice3.code2wav.vocoder import HarmonicVocoder
from antiphon_services.flow.block_cache import BlockPages
from antiphon_services.flow.work import Work


class UtteranceDecoding(Protocol):
    """One utterance on its way from codes to samples."""

    done: bool
    """Whether all samples are made."""

    def ready(self, count: int, *, finished: bool) -> bool:
        """Whether something can be computed of the first `count` codes, which may be all."""

    def advance(self, codes: Array, *, finished: bool) -> Work[Tensor]:
        """Samples float32 [n] that follow those made before, of all codes so far, uint16 [count],
        which may be all. It must be `ready`."""

    def close(self) -> None:
        """Give back what it holds, at any time."""


class WholeDecoding:
    """Waits for all codes. Each frame sees all of prompt and utterance."""

    def __init__(self, flow: MelFlow, vocoder: HarmonicVocoder, voice: ClonedVoice) -> None:
        self._flow, self._vocoder, self._voice = flow, vocoder, voice
        self.done = False

    def ready(self, count: int, *, finished: bool) -> bool:
        """See `UtteranceDecoding`."""
        return finished and not self.done

    def advance(self, codes: Array, *, finished: bool) -> Work[Tensor]:
        """See `UtteranceDecoding`."""
        mel = yield from self._flow.run(self._voice, _ids(codes, self._flow.device))
        samples = yield from self._vocoder.decode(self._vocoder.open(), mel, finished=True)
        self.done = True
        return samples

    def close(self) -> None:
        """Nothing is held."""


class StreamedDecoding:
    """Makes samples of blocks as they are complete. Each frame sees its own block and earlier
    ones."""

    def __init__(self, mel: MelStream, vocoder: HarmonicVocoder, device: torch.device) -> None:
        self._mel, self._vocoder, self._device = mel, vocoder, device
        self._stream = vocoder.open()
        self.done = False

    def ready(self, count: int, *, finished: bool) -> bool:
        """See `UtteranceDecoding`."""
        return self._mel.ready(count, finished=finished)

    def advance(self, codes: Array, *, finished: bool) -> Work[Tensor]:
        """See `UtteranceDecoding`."""
        mel = yield from self._mel.advance(_ids(codes, self._device), finished=finished)
        self.done = self._mel.done
        return (yield from self._vocoder.decode(self._stream, mel, finished=self.done))

    def close(self) -> None:
        """See `UtteranceDecoding`."""
        self._mel.close()


class SpeechDecoder:
    """The flow, then the vocoder, with the `pages` that streamed utterances share. Must run in
    inference mode."""

    def __init__(self, flow: MelFlow, vocoder: HarmonicVocoder, pages: BlockPages) -> None:
        self.flow, self.vocoder, self.pages = flow, vocoder, pages
        self.samples_per_code = FRAMES_PER_CODE * vocoder.samples_per_frame

    def voice(self, speaker: Array, codes: Array, mel: Array) -> ClonedVoice:
        """A voice from the host's arrays; see `ClonedVoice`."""
        # Copies: arrays of a message are read-only, which torch warns of.
        device = self.flow.device
        return ClonedVoice(
            torch.tensor(speaker, device=device),
            torch.tensor(codes, device=device).long(),
            torch.tensor(mel, device=device),
        )

    def open(self, voice: ClonedVoice, *, whole: bool) -> UtteranceDecoding:
        """Begin an utterance of which no code is decoded."""
        if whole:
            return WholeDecoding(self.flow, self.vocoder, voice)
        mel = MelStream(self.flow, voice, self.pages)
        return StreamedDecoding(mel, self.vocoder, self.flow.device)


def _ids(codes: Array, device: torch.device) -> Tensor:
    return torch.tensor(codes.astype("int64"), device=device)
