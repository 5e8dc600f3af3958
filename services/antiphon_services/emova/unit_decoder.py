"""The weights of EMOVA's unit decoder, under the names of its checkpoint."""

from __future__ import annotations

from torch import nn

from antiphon_services.emova.durations import DurationPredictor
from antiphon_services.emova.latent_flow import LatentFlow
from antiphon_services.emova.unit_decoder_sizes import UnitDecoderSizes
from antiphon_services.emova.unit_encoder import UnitEncoder
from antiphon_services.emova.waveform import WaveformGenerator

TRAINED_WITH = ("enc_q.", "enc_r.", "emb_g.", "dp.post_", "dp.flows.1.")
"""Tensors that only training uses: encoders of recordings, speakers, and the duration predictor's
other direction."""


class UnitDecoderModule(nn.Module):
    """The tensors below `decoder.` that inference uses."""

    def __init__(self, sizes: UnitDecoderSizes) -> None:
        super().__init__()
        self.enc_p = UnitEncoder(sizes)
        self.dp = DurationPredictor(sizes)
        self.flow = LatentFlow(sizes)
        self.dec = WaveformGenerator(sizes)
