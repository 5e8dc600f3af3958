"""Decode utterances from codes to samples, as a whole or as a stream."""

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
    """The decoding of one utterance from codes to samples."""

    done: bool
    """Whether all samples are computed."""

    def ready(self, count: int, *, finished: bool) -> bool:
        """Return whether the first `count` codes, which are all codes if `finished`, allow a
        computation."""

    def advance(self, codes: Array, *, finished: bool) -> Work[Tensor]:
        """Compute the next samples, float32 [n], from all codes so far, uint16 [count].

        The codes are complete if `finished`. The decoding must be `ready`.
        """

    def close(self) -> None:
        """Free the pages of the decoding. May be called at any time."""


class WholeDecoding:
    """Decodes when all codes have arrived; each frame attends to the whole prompt and utterance."""

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
        """Do nothing: the decoding has no pages."""


class StreamedDecoding:
    """Decodes block by block; each frame attends to its own block and earlier blocks."""

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
    """The flow and the vocoder, with the `pages` that streamed utterances share.

    Must be called in inference mode.
    """

    def __init__(self, flow: MelFlow, vocoder: HarmonicVocoder, pages: BlockPages) -> None:
        self.flow, self.vocoder, self.pages = flow, vocoder, pages
        self.samples_per_code = FRAMES_PER_CODE * vocoder.samples_per_frame

    def voice(self, speaker: Array, codes: Array, mel: Array) -> ClonedVoice:
        """Return a voice on the device from host arrays; see `ClonedVoice`."""
        # Copies: arrays of a message are read-only, and torch warns about them.
        device = self.flow.device
        return ClonedVoice(
            torch.tensor(speaker, device=device),
            torch.tensor(codes, device=device).long(),
            torch.tensor(mel, device=device),
        )

    def open(self, voice: ClonedVoice, *, whole: bool) -> UtteranceDecoding:
        """Start the decoding of an utterance."""
        if whole:
            return WholeDecoding(self.flow, self.vocoder, voice)
        mel = MelStream(self.flow, voice, self.pages)
        return StreamedDecoding(mel, self.vocoder, self.flow.device)


def _ids(codes: Array, device: torch.device) -> Tensor:
    return torch.tensor(codes.astype("int64"), device=device)
