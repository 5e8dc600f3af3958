"""The vocoder: samples from mel frames, by a harmonic source, convolutions and an inverse STFT.

Mirrors `CausalHiFTGenerator.inference` of the vendor. A pitch for each frame drives sines at its
multiples; noise is added, and the generator shapes both. The noise of a sample depends on the
sample's index alone.

All convolutions look back, but for two at the front, which see `LOOK_AHEAD` frames ahead together
with the STFT. A long utterance is made in pieces, each with `CONTEXT` frames before it and
`LOOK_AHEAD` after it, whose samples are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import elu, interpolate, leaky_relu, pad

from services.cosyvoice3.code2wav.vocoder_module import VocoderModule, causal
from services.flow.work import Work

CONTEXT = 32
"""Frames before a piece. 24 change samples by 1e-7 with random weights."""
LOOK_AHEAD = 5
"""Frames after a piece: four that the first convolution sees, and one for the STFT's windows."""
PITCH_BEHIND, PITCH_AHEAD = 8, 3
"""Frames that the pitch of a frame depends on, exactly."""
PIECE_FRAMES = 200
ROWS_OF_A_FRAME = 64
"""A frame counts as so many rows of a layer of the flow: roughly what it costs."""

LOUDEST_MAGNITUDE = 100.0
LAST_SLOPE = 0.01
NOISE_KEY = 0
RAW_BITS, KEPT_BITS = 64, 24


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The harmonic source: `harmonics` multiples of the pitch beside itself, the sines' amplitude,
    the noise's where there is a voice, and the pitch in Hz above which there is one."""

    harmonics: int
    amplitude: float
    noise: float
    voiced_hz: float
    sample_rate_hz: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> SourceSettings:
        """From the object `hift` of the model's YAML file."""
        return cls(
            config["nb_harmonics"],
            config["nsf_alpha"],
            config["nsf_sigma"],
            config["nsf_voiced_threshold"],
            config["sampling_rate"],
        )


class HarmonicVocoder:
    """Computes with a `VocoderModule` whose weight norm is folded, in float32; `config` is the
    object `hift` of the model's YAML file. The pitch is computed in float64, as in the vendor's."""

    def __init__(self, module: VocoderModule, config: Mapping[str, Any]) -> None:
        self._module: Any = module
        self._pitch: Any = module.f0_predictor.double()
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

    def decode(self, mel: Tensor) -> Work[Tensor]:
        """float32 [samples_per_frame * n] of mel frames [n, bins], piece by piece."""
        count, each = len(mel), self.samples_per_frame
        starts = range(0, count, PIECE_FRAMES)
        pitch = torch.cat([self._pitch_of(mel, at, min(at + PIECE_FRAMES, count)) for at in starts])
        phase = self._phase(pitch)
        samples = mel.new_empty(count * each)
        for start in starts:
            stop = min(start + PIECE_FRAMES, count)
            first, last = max(0, start - CONTEXT), min(count, stop + LOOK_AHEAD)
            source = self._excite(pitch, phase, first, last)
            made = self._generate(mel[first:last].T[None], source)
            samples[start * each : stop * each] = made[(start - first) * each :][
                : (stop - start) * each
            ]
            yield (last - first) * ROWS_OF_A_FRAME
        return samples

    def _pitch_of(self, mel: Tensor, start: int, stop: int) -> Tensor:
        """float32 [stop - start]: the pitch of these frames, Hz."""
        first, last = max(0, start - PITCH_BEHIND), min(len(mel), stop + PITCH_AHEAD)
        x = mel[first:last].T[None].double()
        conv, *rest = self._pitch.condnet[::2]
        x = elu(conv(pad(x, (0, conv.kernel_size[0] - 1))))
        for conv in rest:
            x = elu(causal(conv, x))
        pitch = self._pitch.classifier(x[0].T)[:, 0].abs().to(mel.dtype)
        kept: Tensor = pitch[start - first : stop - first]
        return kept

    def _phase(self, pitch: Tensor) -> Tensor:
        """float32 [n, harmonics + 1]: the phase at each frame.

        Products and roundings have the vendor's order: at the end of a long utterance another
        order is another sound.
        """
        multiples = torch.arange(1, self._source.harmonics + 2, device=pitch.device)
        turns = (pitch[:, None] * multiples / self._source.sample_rate_hz) % 1
        phase: Tensor = torch.cumsum(turns, dim=0) * 2 * np.pi * self.samples_per_frame
        return phase

    def _excite(self, pitch: Tensor, phase: Tensor, first: int, last: int) -> Tensor:
        """float32 [samples]: the source of frames `first` to `last`."""
        each, source = self.samples_per_frame, self._source
        sines = torch.sin(phase[first:last]).repeat_interleave(each, dim=0) * source.amplitude
        voiced = (pitch[first:last] > source.voiced_hz).to(sines).repeat_interleave(each)[:, None]
        loudness = voiced * source.noise + (1 - voiced) * source.amplitude / 3
        noise = torch.from_numpy(noise_of(first, last, each, sines.shape[1])).to(sines.device)
        merged: Tensor = self._module.m_source.l_linear(sines * voiced + loudness * noise)
        return merged[:, 0].tanh()

    def _generate(self, mel: Tensor, source: Tensor) -> Tensor:
        """float32 [samples] of mel frames [1, bins, n] and their source."""
        module = self._module
        spectrum = torch.stft(
            source, self._fft, self._hop, self._fft, window=self._window, return_complex=True
        )
        excitation = torch.cat((spectrum.real, spectrum.imag))[None]
        x = module.conv_pre(pad(mel, (0, module.conv_pre.kernel_size[0] - 1)))
        for level, rate in enumerate(self._rates):
            x = interpolate(leaky_relu(x, self._slope), scale_factor=float(rate))
            x = causal(module.ups[level], x)
            if level == len(self._rates) - 1:
                x = pad(x, (1, 0), mode="reflect")
            down = module.source_downs[level]
            fused = down(pad(excitation, (down.stride[0] - 1, 0)))
            x = x + module.source_resblocks[level](fused)
            blocks = module.resblocks[level * self._kinds : (level + 1) * self._kinds]
            x = sum(block(x) for block in blocks) / self._kinds
        x = causal(module.conv_post, leaky_relu(x, LAST_SLOPE))[0]
        bins = self._fft // 2 + 1
        magnitude, angle = x[:bins].exp().clip(max=LOUDEST_MAGNITUDE), x[bins:].sin()
        made = torch.istft(
            torch.complex(magnitude * angle.cos(), magnitude * angle.sin()),
            self._fft,
            self._hop,
            self._fft,
            window=self._window,
        )
        return made.clamp(-self._limit, self._limit)


def noise_of(
    first: int, last: int, samples_per_frame: int, width: int
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """float32 [samples, width] in [0, 1): the noise of frames `first` to `last`.

    The vendor draws it once when a model is made, from a generator in an unknown state.
    """
    of_a_frame = samples_per_frame * width
    source = np.random.Philox(key=NOISE_KEY)
    block, skipped = divmod(first * of_a_frame, 4)
    source.advance(block)
    raw = source.random_raw(skipped + (last - first) * of_a_frame)[skipped:]
    kept = (raw >> np.uint64(RAW_BITS - KEPT_BITS)).astype(np.float32) * np.float32(2**-KEPT_BITS)
    return kept.reshape(-1, width)
