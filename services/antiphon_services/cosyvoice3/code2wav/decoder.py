"""Decodes the codes of an utterance to samples, either all at once or as a stream."""

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
    """The decoder state of one utterance."""

    done: bool
    """Whether all samples have been computed."""

    def ready(self, count: int, *, finished: bool) -> bool:
        """Return whether more samples can be computed from the first `count` codes.

        Set `finished` if the utterance has no further codes.
        """

    def advance(self, codes: Array, *, finished: bool) -> Work[Tensor]:
        """Compute the next samples from all codes received so far. Yields the amount of work done.

        `codes` is a uint16 array of shape [count], and the result is a float32 tensor of shape [n].
        Set `finished` if the utterance has no further codes. Only call this method if `ready`
        returns True.
        """

    def close(self) -> None:
        """Release the pages that the utterance uses. This method can be called at any time."""


class WholeDecoding:
    """Decodes an utterance after all of its codes have arrived.

    Every frame attends to the entire prompt and the entire utterance.
    """

    def __init__(self, flow: MelFlow, vocoder: HarmonicVocoder, voice: ClonedVoice) -> None:
        self._flow, self._vocoder, self._voice = flow, vocoder, voice
        self.done = False

    def ready(self, count: int, *, finished: bool) -> bool:
        """Implements `UtteranceDecoding.ready`."""
        return finished and not self.done

    def advance(self, codes: Array, *, finished: bool) -> Work[Tensor]:
        """Implements `UtteranceDecoding.advance`."""
        mel = yield from self._flow.run(self._voice, _ids(codes, self._flow.device))
        samples = yield from self._vocoder.decode(self._vocoder.open(), mel, finished=True)
        self.done = True
        return samples

    def close(self) -> None:
        """Does nothing, because this decoder does not use any pages."""


class StreamedDecoding:
    """Decodes an utterance in blocks. Each frame attends to its own block and to earlier blocks."""

    def __init__(self, mel: MelStream, vocoder: HarmonicVocoder, device: torch.device) -> None:
        self._mel, self._vocoder, self._device = mel, vocoder, device
        self._stream = vocoder.open()
        self.done = False

    def ready(self, count: int, *, finished: bool) -> bool:
        """Implements `UtteranceDecoding.ready`."""
        return self._mel.ready(count, finished=finished)

    def advance(self, codes: Array, *, finished: bool) -> Work[Tensor]:
        """Implements `UtteranceDecoding.advance`."""
        mel = yield from self._mel.advance(_ids(codes, self._device), finished=finished)
        self.done = self._mel.done
        return (yield from self._vocoder.decode(self._stream, mel, finished=self.done))

    def close(self) -> None:
        """Implements `UtteranceDecoding.close`."""
        self._mel.close()


class SpeechDecoder:
    """The flow and the vocoder, together with the `pages` that all streamed utterances share.

    Call its methods in inference mode.
    """

    def __init__(self, flow: MelFlow, vocoder: HarmonicVocoder, pages: BlockPages) -> None:
        self.flow, self.vocoder, self.pages = flow, vocoder, pages
        self.samples_per_code = FRAMES_PER_CODE * vocoder.samples_per_frame

    def voice(self, speaker: Array, codes: Array, mel: Array) -> ClonedVoice:
        """Copy the arrays of a voice to the device. The arguments are described in
        `ClonedVoice`.
        """
        # Message arrays are read-only and torch warns about them, so they are copied.
        device = self.flow.device
        return ClonedVoice(
            torch.tensor(speaker, device=device),
            torch.tensor(codes, device=device).long(),
            torch.tensor(mel, device=device),
        )

    def open(self, voice: ClonedVoice, *, whole: bool) -> UtteranceDecoding:
        """Start decoding an utterance. Set `whole` to decode it all at once instead of streaming
        it.
        """
        if whole:
            return WholeDecoding(self.flow, self.vocoder, voice)
        mel = MelStream(self.flow, voice, self.pages)
        return StreamedDecoding(mel, self.vocoder, self.flow.device)


def _ids(codes: Array, device: torch.device) -> Tensor:
    return torch.tensor(codes.astype("int64"), device=device)
