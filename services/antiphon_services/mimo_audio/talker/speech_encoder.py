"""Encodes a recording to codes.

A log-mel spectrogram is processed by transformer layers with full attention, followed by residual
codebooks.

The vendor's code splits a recording into segments of `SEGMENT_FRAMES` mel frames, which do not
attend to each other. It repeats the last frame of codes until the number of frames is a multiple of
the group size. Because it encodes the segments in one batch, a last segment that is shorter than
the first one is padded, which changes its last rows. This module reproduces that behavior.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad
from transformers.audio_utils import mel_filter_bank

from antiphon_services.vocoder.rotary_layers import RotaryLayer, Window, rotary_turns

SEGMENT_FRAMES = 6000
LEAST_MAGNITUDE = 1e-7


class CodecEncoderModule(nn.Module):
    """The tensors below `encoder.`, except for the quantizer.

    `config` is the configuration of the audio tokenizer.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, kernel, pooled = config["d_model"], config["kernel_size"], config["avg_pooler"]
        self.conv1 = nn.Conv1d(config["n_mels"], width, kernel, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel, stride=config["stride_size"], padding=1)
        self.layers = nn.ModuleList(
            RotaryLayer(width, config["encoder_attention_heads"], config["encoder_ffn_dim"])
            for _ in range(config["encoder_layers"])
        )
        self.layer_norm = nn.LayerNorm(width)
        self.down_sample_layer = nn.Sequential(
            nn.Conv1d(width, width, pooled, pooled, bias=False), nn.GELU()
        )
        self.down_sample_norm = nn.LayerNorm(width)


class SpeechEncoder:
    """Encodes recordings.

    `tables` contains the codebooks whose codes the language model reads, each a float tensor of
    shape [entries, width].
    """

    def __init__(
        self,
        module: CodecEncoderModule,
        tables: tuple[Tensor, ...],
        config: Mapping[str, Any],
        *,
        group: int,
    ) -> None:
        self._module, self._group = module, group
        self._tables = tuple(each.float() for each in tables)
        self._theta = float(config["rope_theta"])
        self._head_dim = config["d_model"] // config["encoder_attention_heads"]
        before, after = config["encoder_attn_window_size"]
        causal = config["encoder_causal"]
        self._window = Window(
            None if before < 0 else before, 0 if causal else None if after < 0 else after
        )
        self._pool: int = config["avg_pooler"]
        self._skip: int | None = config["encoder_skip_layer_id"]
        self._fft, self._hop = config["nfft"], config["hop_length"]
        self.sample_rate_hz: int = config["sampling_rate"]
        # Both ends are padded by reflection, with half a window.
        self.least_samples = self._fft // 2 + 1
        self.device = module.layer_norm.weight.device
        self.bytes = sum(each.nbytes for each in (*module.parameters(), *tables))
        highest = float(config["fmax"] or self.sample_rate_hz // 2)
        filters = mel_filter_bank(
            self._fft // 2 + 1,
            config["n_mels"],
            float(config["fmin"]),
            highest,
            self.sample_rate_hz,
            norm=None,
            mel_scale="htk",
        )
        self._filters = torch.from_numpy(filters).to(self.device).float()

    def codes(self, samples: Tensor) -> Tensor:
        """Encode float samples of shape [m] to int64 codes of shape [n, channels].

        m must be at least `least_samples`. n is a multiple of `group`.
        """
        segments = torch.split(self.mel(samples), SEGMENT_FRAMES)
        longest = len(segments[0])
        made = torch.cat([self._quantized(each, len(each) < longest) for each in segments])
        missing = -len(made) % self._group
        return torch.cat((made, made[-1:].expand(missing, -1)))

    def mel(self, samples: Tensor) -> Tensor:
        """Return the logarithms of mel magnitudes, as a float tensor of shape [m // hop + 1,
        bins].
        """
        window = torch.hann_window(self._fft, device=samples.device)
        spectrum = torch.stft(
            samples.float(), self._fft, self._hop, window=window, return_complex=True
        )
        return (spectrum.abs().T @ self._filters).clamp(min=LEAST_MAGNITUDE).log()

    def _quantized(self, mel: Tensor, padded: bool) -> Tensor:
        """Encode the mel frames of one segment, of shape [m, bins], to int64 codes of shape [n,
        channels].

        `padded` is true if the segment is shorter than the first one.
        """
        residual, codes = self._states(mel, padded).float(), []
        for table in self._tables:
            distances = (
                residual.square().sum(1, keepdim=True)
                - 2 * residual @ table.T
                + table.square().sum(1)
            )
            codes.append(distances.argmin(1))
            residual = residual - table[codes[-1]]
        return torch.stack(codes, 1)

    def _states(self, mel: Tensor, padded: bool) -> Tensor:
        """Encode mel frames of shape [m, bins] to states of shape [n, width]."""
        module = self._module
        stride: int = module.conv2.stride[0]
        count = (len(mel) - 1) // stride + 1
        # The padding is zero before the first convolution if the segment is padded, and after it
        # otherwise.
        behind = pad(mel, (0, 0, 0, module.conv2.kernel_size[0])) if padded else mel
        columns = behind.T[None].to(module.conv1.weight.dtype)
        rows = gelu(module.conv2(gelu(module.conv1(columns))))[0].T[:count]
        turns = rotary_turns(count, self._head_dim, self._theta, rows)
        mask = self._window.mask(count, rows.device)
        skipped: Tensor | None = None
        for number, layer in enumerate(module.layers, 1):
            rows = layer(rows, turns, mask)
            if number == self._skip:
                skipped = rows
        rows = module.layer_norm(rows if skipped is None else rows + skipped)
        return self._pooled(rows, padded)

    def _pooled(self, rows: Tensor, padded: bool) -> Tensor:
        """Pool rows of shape [m, width] to [n, width].

        The last pool is completed with copies of the last row if the segment is padded, and with
        zeros otherwise.
        """
        module = self._module
        missing = -len(rows) % self._pool
        behind = rows[-1:] if padded else torch.zeros_like(rows[-1:])
        rows = torch.cat((rows, behind.expand(missing, -1)))
        out: Tensor = module.down_sample_norm(module.down_sample_layer(rows.T[None])[0].T)
        return out
