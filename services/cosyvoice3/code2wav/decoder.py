"""Utterances of codes to samples."""

from __future__ import annotations

import torch
from torch import Tensor

from antiphon.chunk import Tensor as Array
from antiphon.pipelines.cosyvoice3 import FRAMES_PER_CODE
from services.cosyvoice3.code2wav.flow import ClonedVoice, MelFlow
from services.cosyvoice3.code2wav.vocoder import HarmonicVocoder
from services.flow.work import Work


class SpeechDecoder:
    """The flow, then the vocoder. Must run in inference mode."""

    def __init__(self, flow: MelFlow, vocoder: HarmonicVocoder) -> None:
        self._flow, self._vocoder = flow, vocoder
        self.samples_per_code = FRAMES_PER_CODE * vocoder.samples_per_frame

    def voice(self, speaker: Array, codes: Array, mel: Array) -> ClonedVoice:
        """A voice from the host's arrays; see `ClonedVoice`."""
        # Copies: arrays of a message are read-only, which torch warns of.
        device = self._flow.device
        return ClonedVoice(
            torch.tensor(speaker, device=device),
            torch.tensor(codes, device=device).long(),
            torch.tensor(mel, device=device),
        )

    def decode(self, voice: ClonedVoice, codes: Array) -> Work[Tensor]:
        """float32 [samples_per_code * n] of codes uint16 [n], one at least."""
        ids = torch.tensor(codes.astype("int64"), device=self._flow.device)
        mel = yield from self._flow.run(voice, ids)
        return (yield from self._vocoder.decode(mel))
