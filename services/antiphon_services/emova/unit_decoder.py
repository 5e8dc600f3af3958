"""The weights of EMOVA's unit decoder. Tensors have the same names as in its checkpoint."""

from __future__ import annotations

from torch import nn

from antiphon_services.emova.durations import DurationPredictor
from antiphon_services.emova.latent_flow import LatentFlow
from antiphon_services.emova.unit_decoder_sizes import UnitDecoderSizes
from antiphon_services.emova.unit_encoder import UnitEncoder
from antiphon_services.emova.waveform import WaveformGenerator

TRAINED_WITH = ("enc_q.", "enc_r.", "emb_g.", "dp.post_", "dp.flows.1.")
"""The tensors that are only used in training.

They belong to the encoders of recordings, the speaker embeddings, and the inverse direction of the
duration predictor.
"""


class UnitDecoderModule(nn.Module):
    """The tensors below `decoder.` that are used for inference."""

    def __init__(self, sizes: UnitDecoderSizes) -> None:
        super().__init__()
        self.enc_p = UnitEncoder(sizes)
        self.dp = DurationPredictor(sizes)
        self.flow = LatentFlow(sizes)
        self.dec = WaveformGenerator(sizes)
