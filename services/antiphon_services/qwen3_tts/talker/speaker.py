"""Computes a speaker vector from a recording, using the ECAPA-TDNN network of Qwen3-TTS's base
models.

Names are the same as in the checkpoint. This mirrors the vendor package's `Qwen3TTSSpeakerEncoder`,
for a single recording without padding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.pipelines.qwen3_tts import SAMPLE_RATE_HZ
from antiphon_services.clips.features import LogMel

MEL_BINS = 128
MEL = LogMel(SAMPLE_RATE_HZ, MEL_BINS, window=1024, hop=256, highest_hz=12_000.0)
LEAST_VARIANCE = 1e-12


class _Convolution(nn.Module):
    """A convolution that preserves the length, with reflection padding at both ends, followed by
    ReLU.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = _plain(inputs, outputs, kernel, dilation)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.conv(x))


def _plain(inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> nn.Conv1d:
    return nn.Conv1d(
        inputs, outputs, kernel, dilation=dilation, padding="same", padding_mode="reflect"
    )


class _Res2Net(nn.Module):
    """Splits the channels into `scale` parts. The input of each part includes the previous part's
    output.
    """

    def __init__(self, channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        width = channels // scale
        self._scale = scale
        self.blocks = nn.ModuleList(
            _Convolution(width, width, kernel, dilation) for _ in range(scale - 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        first, *parts = x.chunk(self._scale, dim=1)
        outputs, before = [first], torch.zeros_like(first)
        for block, part in zip(self.blocks, parts, strict=True):
            before = block(part + before)
            outputs.append(before)
        return torch.cat(outputs, dim=1)


class _Squeeze(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv1 = _plain(channels, squeezed)
        self.conv2 = _plain(squeezed, channels)

    def forward(self, x: Tensor) -> Tensor:
        mean = functional.relu(self.conv1(x.mean(2, keepdim=True)))
        scaled: Tensor = x * self.conv2(mean).sigmoid()
        return scaled


class _Block(nn.Module):
    def __init__(
        self, inputs: int, channels: int, kernel: int, dilation: int, config: dict[str, Any]
    ) -> None:
        super().__init__()
        self.tdnn1 = _Convolution(inputs, channels)
        self.res2net_block = _Res2Net(channels, config["enc_res2net_scale"], kernel, dilation)
        self.tdnn2 = _Convolution(channels, channels)
        self.se_block = _Squeeze(channels, config["enc_se_channels"])

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))
        return made + x


class _Pooling(nn.Module):
    """The mean and the standard deviation over time, weighted by attention."""

    def __init__(self, channels: int, attention: int) -> None:
        super().__init__()
        self.tdnn = _Convolution(3 * channels, attention)
        self.conv = _plain(attention, channels)

    def forward(self, x: Tensor) -> Tensor:
        even = torch.full_like(x[:, :1], 1 / x.shape[2])
        mean, deviation = (each[..., None].expand_as(x) for each in _statistics(x, even))
        weights = self.conv(self.tdnn(torch.cat((x, mean, deviation), dim=1)).tanh()).softmax(2)
        return torch.cat(_statistics(x, weights), dim=1)[..., None]


def _statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    mean = (weights * x).sum(2)
    variance = (weights * (x - mean[..., None]).pow(2)).sum(2)
    return mean, variance.clamp(min=LEAST_VARIANCE).sqrt()


class SpeakerEncoder(nn.Module):
    """All weights below `speaker_encoder.` in `model.safetensors`.

    `config` is `speaker_encoder_config`. Fields that are missing have the same values as in the
    released models.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        config = DEFAULTS | config
        channels = config["enc_channels"]
        kernels, dilations = config["enc_kernel_sizes"], config["enc_dilations"]
        inner = range(1, len(channels) - 1)
        self.blocks = nn.ModuleList(
            [
                _Convolution(MEL_BINS, channels[0], kernels[0], dilations[0]),
                *(
                    _Block(channels[i - 1], channels[i], kernels[i], dilations[i], config)
                    for i in inner
                ),
            ]
        )
        self.mfa = _Convolution(channels[-1], channels[-1], kernels[-1], dilations[-1])
        self.asp = _Pooling(channels[-1], config["enc_attention_channels"])
        self.fc = _plain(2 * channels[-1], config["enc_dim"])

    def forward(self, samples: Tensor) -> Tensor:
        """Return the vector [width] for samples [n] at 24 kHz."""
        x, parts = MEL.of(samples)[None].to(self.fc.weight), []
        for block in self.blocks:
            x = block(x)
            parts.append(x)
        vector: Tensor = self.fc(self.asp(self.mfa(torch.cat(parts[1:], dim=1))))[0, :, 0]
        return vector


DEFAULTS: dict[str, Any] = {
    "enc_attention_channels": 128,
    "enc_channels": [512, 512, 512, 512, 1536],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_dim": 1024,
    "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_res2net_scale": 8,
    "enc_se_channels": 128,
}
