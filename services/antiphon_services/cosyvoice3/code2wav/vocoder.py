"""The vocoder, which computes samples from mel frames.

It consists of a harmonic source, convolutions and an inverse STFT. It mirrors the vendor's
`CausalHiFTGenerator.inference`. The source generates sine waves at multiples of the pitch of each
frame and adds noise. The generator then shapes both. The noise of a sample depends only on its
index.

Utterances are processed in pieces. The stream of an utterance stores the past state of each layer
and the phases of the sine waves, so the result does not depend on how the utterance is split. All
layers are causal except the first convolutions of the generator and the pitch predictor. Because of
these convolutions and the STFT, the samples of a frame depend on the `LOOK_AHEAD` frames that
follow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import elu, interpolate, leaky_relu, pad

from antiphon.transport.device_edge import on_device
from antiphon_services.cosyvoice3.code2wav.vocoder_module import VocoderModule
from antiphon_services.flow.work import Work
from antiphon_services.vocoder.convolution_state import ConvolutionState
from antiphon_services.vocoder.spectrum_stream import StreamingIstft, StreamingStft

LOOK_AHEAD = 5
"""The number of subsequent frames on which the samples of a frame depend.

The first convolution requires four frames, and the windows of the STFT require one.
"""
PIECE_FRAMES = 200
ROWS_OF_A_FRAME = 64
"""The approximate cost of a frame, expressed as a number of rows in one layer of the flow."""

LOUDEST_MAGNITUDE = 100.0
LAST_SLOPE = 0.01
NOISE_KEY = 0
RAW_BITS, KEPT_BITS = 64, 24


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The settings of the harmonic source.

    `harmonics` is the number of harmonics in addition to the pitch. `amplitude` is the amplitude of
    the sine waves, and `noise` is the amplitude of the noise in voiced frames. A frame is voiced if
    its pitch is above `voiced_hz`.
    """

    harmonics: int
    amplitude: float
    noise: float
    voiced_hz: float
    sample_rate_hz: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> SourceSettings:
        """Read the settings from the `hift` object of the model's YAML file."""
        return cls(
            config["nb_harmonics"],
            config["nsf_alpha"],
            config["nsf_sigma"],
            config["nsf_voiced_threshold"],
            config["sampling_rate"],
        )


@dataclass(slots=True)
class VocoderStream:
    """The state of an utterance between pieces.

    `frames` is the number of frames whose source has been computed. `turns` contains the phases
    after these frames, as a float64 tensor of shape [harmonics + 1]. `columns`, of shape [2 * bins,
    n], contains source spectra that the generator has not yet processed. `generated` is true after
    the generator has started.
    """

    convolutions: ConvolutionState
    stft: StreamingStft
    istft: StreamingIstft
    turns: Tensor
    columns: Tensor
    frames: int = 0
    generated: bool = False

    def take_columns(self, count: int) -> Tensor:
        """Remove the next columns and return them, as a tensor of shape [1, 2 * bins, count].

        The first call returns one additional column, which is centered on the first sample.
        """
        if not self.generated:
            count += 1
        taken, self.columns = self.columns[:, :count], self.columns[:, count:].clone()
        return taken[None]


class HarmonicVocoder:
    """Computes samples with the float32 weights of a `VocoderModule`.

    Weight normalization must already be folded into the weights. `config` is the `hift` object of
    the model's YAML file. Like the vendor's code, the vocoder computes the pitch in float64.
    """

    def __init__(self, module: VocoderModule, config: Mapping[str, Any]) -> None:
        self._module: Any = module
        self._pitch: Any = module.f0_predictor
        self._source = SourceSettings.of(config)
        self._slope: float = config["lrelu_slope"]
        self._limit: float = config["audio_limit"]
        self._rates: list[int] = config["upsample_rates"]
        self._fft, self._hop = config["istft_params"]["n_fft"], config["istft_params"]["hop_len"]
        self._kinds = len(config["resblock_kernel_sizes"])
        self.samples_per_frame = self._hop
        for rate in self._rates:
            self.samples_per_frame *= rate
        weight: Any = self._module.conv_post.weight
        self._window = torch.hann_window(self._fft, device=weight.device)

    def open(self) -> VocoderStream:
        """Create the stream of a new utterance."""
        return VocoderStream(
            convolutions=ConvolutionState(),
            stft=StreamingStft(self._window, self._hop),
            istft=StreamingIstft(self._window, self._hop),
            turns=self._window.new_zeros(self._source.harmonics + 1, dtype=torch.float64),
            columns=self._window.new_zeros(self._fft + 2, 0),
        )

    def decode(self, stream: VocoderStream, mel: Tensor, *, finished: bool) -> Work[Tensor]:
        """Compute the samples that mel frames of shape [n, bins] complete, one piece at a time.

        The result is a float32 tensor. Set `finished` if no more frames follow. The stream has then
        produced exactly `samples_per_frame` samples for each of its frames.
        """
        if not (len(mel) or finished):
            return mel.new_empty(0)
        pieces: Sequence[Tensor] = torch.split(mel, PIECE_FRAMES)
        made = []
        for number, piece in enumerate(pieces, 1):
            last = finished and number == len(pieces)
            made.append(self._advance(stream, piece.T[None], finished=last))
            yield len(piece) * ROWS_OF_A_FRAME
        return torch.cat(made)

    def _advance(self, stream: VocoderStream, mel: Tensor, *, finished: bool) -> Tensor:
        """Return the samples that mel frames of shape [1, bins, n] complete."""
        pitch = self._pitch_of(stream, mel, finished=finished)
        if len(pitch):
            spectra = stream.stft.advance(self._excite(stream, pitch), finished=finished)
            columns = torch.cat((spectra.real, spectra.imag))
            stream.columns = torch.cat((stream.columns, columns), dim=1)
        conv = self._module.conv_pre
        x = stream.convolutions.ahead(conv, mel, finished=finished)
        if not x.shape[2]:
            return mel.new_empty(0)
        return self._generate(stream, x, finished=finished)

    def _pitch_of(self, stream: VocoderStream, mel: Tensor, *, finished: bool) -> Tensor:
        """Return the pitches in Hz that mel frames of shape [1, bins, n] complete.

        The result is a float32 tensor of shape [n].
        """
        conv, *rest = self._pitch.condnet[::2]
        x = elu(stream.convolutions.ahead(conv, mel.double(), finished=finished))
        if not x.shape[2]:
            return mel.new_empty(0)
        for conv in rest:
            x = elu(stream.convolutions.causal(conv, x))
        pitch: Tensor = self._pitch.classifier(x[0].T)[:, 0].abs().to(mel.dtype)
        return pitch

    def _excite(self, stream: VocoderStream, pitch: Tensor) -> Tensor:
        """Return the float32 source samples for the next frames, given their pitch of shape [n].

        The vendor's code computes a float64 sum of turns and rounds it to float32, so this method
        uses the same dtypes. It also performs the multiplications and rounding in the same order,
        because a different order audibly changes the end of a long utterance.
        """
        each, source = self.samples_per_frame, self._source
        multiples = torch.arange(1, source.harmonics + 2, device=pitch.device)
        turns = (pitch[:, None] * multiples / source.sample_rate_hz) % 1
        sums = stream.turns + torch.cumsum(turns.double(), dim=0)
        first, last = stream.frames, stream.frames + len(pitch)
        stream.turns, stream.frames = sums[-1], last
        phase = sums.to(turns) * 2 * np.pi * each
        sines = torch.sin(phase).repeat_interleave(each, dim=0) * source.amplitude
        voiced = (pitch > source.voiced_hz).to(sines).repeat_interleave(each)[:, None]
        loudness = voiced * source.noise + (1 - voiced) * source.amplitude / 3
        noise = on_device(noise_of(first, last, each, sines.shape[1]), sines.device)
        merged: Tensor = self._module.m_source.l_linear(sines * voiced + loudness * noise)
        return merged[:, 0].tanh()

    def _generate(self, stream: VocoderStream, x: Tensor, *, finished: bool) -> Tensor:
        """Return samples for the rows of the first convolution, which have shape [1, channels,
        n].
        """
        module, past = self._module, stream.convolutions
        excitation = stream.take_columns(x.shape[2] * self.samples_per_frame // self._hop)
        first = not stream.generated
        stream.generated = True
        for level, rate in enumerate(self._rates):
            x = interpolate(leaky_relu(x, self._slope), scale_factor=float(rate))
            x = past.causal(module.ups[level], x)
            if first and level == len(self._rates) - 1:
                x = pad(x, (1, 0), mode="reflect")
            fused = past.strided(module.source_downs[level], excitation)
            x = x + module.source_resblocks[level](fused, past)
            blocks = module.resblocks[level * self._kinds : (level + 1) * self._kinds]
            x = sum(block(x, past) for block in blocks) / self._kinds
        x = past.causal(module.conv_post, leaky_relu(x, LAST_SLOPE))[0]
        bins = self._fft // 2 + 1
        magnitude, angle = x[:bins].exp().clip(max=LOUDEST_MAGNITUDE), x[bins:].sin()
        spectra = torch.complex(magnitude * angle.cos(), magnitude * angle.sin())
        made = stream.istft.advance(spectra, finished=finished)
        return made.clamp(-self._limit, self._limit)


def noise_of(
    first: int, last: int, samples_per_frame: int, width: int
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the noise for the frames from `first` up to, but not including, `last`.

    The result is a float32 array of shape [samples, width] with values in [0, 1). The vendor's code
    samples the noise once per model, from a generator whose state is unknown.
    """
    of_a_frame = samples_per_frame * width
    source = np.random.Philox(key=NOISE_KEY)
    block, skipped = divmod(first * of_a_frame, 4)
    source.advance(block)
    raw = source.random_raw(skipped + (last - first) * of_a_frame)[skipped:]
    kept = (raw >> np.uint64(RAW_BITS - KEPT_BITS)).astype(np.float32) * np.float32(2**-KEPT_BITS)
    return kept.reshape(-1, width)
