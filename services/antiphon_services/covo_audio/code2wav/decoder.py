"""Converts the codes of a complete answer to samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from antiphon_services.covo_audio.code2wav.answer_flow import AnswerFlow
from antiphon_services.covo_audio.code2wav.answer_vocoder import AnswerVocoder
from antiphon_services.flow.work import Work


class AnswerDecoder:
    """A decoder that consists of the flow and the vocoder. Call its methods in inference mode.

    `mean` and `variance`, each of shape [width], are used to denormalize the latents.
    """

    def __init__(
        self,
        flow: AnswerFlow,
        vocoder: AnswerVocoder,
        mean: npt.NDArray[np.float32],
        variance: npt.NDArray[np.float32],
    ) -> None:
        self.flow, self.vocoder = flow, vocoder
        self._mean = torch.from_numpy(mean).to(flow.device)
        self._deviation = torch.from_numpy(variance).to(flow.device).sqrt()
        self.samples_per_code = flow.per_code * vocoder.samples_per_latent

    def decode(self, codes: npt.NDArray[np.uint16], key: int) -> Work[Tensor]:
        """Compute the float32 samples of an answer and yield the amount of work done.

        `codes` has shape [m]. `key` determines the noise. The number of samples is the number of
        latents that `AnswerFlow.latents` returns times `vocoder.samples_per_latent`.
        """
        heard = torch.from_numpy(codes.astype(np.int64)).to(self.flow.device)
        latents = yield from self.flow.latents(heard, key)
        return (yield from self.vocoder.samples(self._mean + latents * self._deviation))
