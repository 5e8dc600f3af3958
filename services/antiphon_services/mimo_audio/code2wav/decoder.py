"""Decodes codes to samples in a single pass.

Each frame of codes becomes two rows, each row becomes two mel frames, and each mel frame becomes
`hop` samples. Both of the upsampling layers normalize over channels and time (GroupNorm), so every
sample depends on every frame. If an utterance is decoded in parts, the result is therefore close to
that of a single pass, but not identical.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, fold

from antiphon.transport.device_edge import host_array
from antiphon.values.chunk import Tensor as Array
from antiphon_services.mimo_audio.code2wav.module import CodecDecoderModule
from antiphon_services.mimo_audio.code2wav.windows import DecodeWindow
from antiphon_services.vocoder.rotary_layers import Window, rotary_turns

LARGEST_MAGNITUDE = 100.0


class FrameCodecDecoder:
    """Decodes frames of codes.

    `tables` contains one codebook per channel, each a float tensor of shape [entries, width].
    """

    def __init__(
        self, module: CodecDecoderModule, tables: Sequence[Tensor], config: Mapping[str, Any]
    ) -> None:
        self.module, self._tables = module, tuple(tables)
        self._theta = float(config["rope_theta"])
        self._head_dim = config["d_model"] // config["decoder_attention_heads"]
        self._vocoder_head_dim = config["vocoder_dim"] // config["vocoder_attention_heads"]
        self._fft, self._hop = config["nfft"], config["hop_length"]
        before, after = config["decoder_attn_window_size"]
        causal = config["decoder_causal"]
        self._window = Window(_limit(before), 0 if causal else _limit(after))
        before, after = config["vocoder_attn_window_size"]
        self._vocoder_window = Window(_limit(before), _limit(after))
        mel_frames = config["avg_pooler"] * config["decoder_stride_size"]
        self.samples_per_frame = mel_frames * self._hop
        self.look_ahead = -(-config["vocoder_num_layers"] * after // mel_frames)
        """The number of frames by which the layers of the vocoder look ahead."""

    def samples(self, codes: Tensor) -> Tensor:
        """Decode int64 codes of shape [n, channels], in which n must be above 0.

        The result is a float tensor of shape [n * samples_per_frame].
        """
        return self._spoken(self._mel(self._embedded(codes)))

    def window_samples(self, codes: Array, window: DecodeWindow) -> Array:
        """Decode a window and return the samples of its own frames.

        `codes` is a uint16 array of shape [m, channels] that contains all frames of the window,
        including its context. The result is a float32 array of shape [n * samples_per_frame].
        """
        # Message arrays are read-only and torch warns about them, so the codes are copied.
        ids = torch.tensor(codes.astype("int64"), device=self._tables[0].device)
        step = self.samples_per_frame
        first, stop = window.first - window.left, window.stop - window.left
        return host_array(self.samples(ids)[step * first : step * stop].float())

    def _embedded(self, codes: Tensor) -> Tensor:
        """Return the sum of the code embeddings, of shape [n, width], added in channel order."""
        rows = self._tables[0].new_zeros(len(codes), self._tables[0].shape[1])
        for channel, table in enumerate(self._tables):
            rows = rows + embedding(codes[:, channel], table)
        return rows

    def _mel(self, rows: Tensor) -> Tensor:
        """Convert rows of shape [n, width] to mel frames of shape [frames, bins]."""
        module = self.module
        rows = _doubled(module.dconv1, rows.to(module.layer_norm.weight.dtype))
        turns = rotary_turns(len(rows), self._head_dim, self._theta, rows)
        mask = self._window.mask(len(rows), rows.device)
        for layer in module.layers:
            rows = layer(rows, turns, mask)
        return _doubled(module.dconv2, module.layer_norm(rows))

    def _spoken(self, mel: Tensor) -> Tensor:
        """Convert mel frames of shape [frames, bins] to samples of shape [frames * hop]."""
        vocoder = self.module.vocoder
        rows = vocoder.embeddings(mel)
        turns = rotary_turns(len(rows), self._vocoder_head_dim, self._theta, rows)
        mask = self._vocoder_window.mask(len(rows), rows.device)
        for layer in vocoder.layers:
            rows = layer(rows, turns, mask)
        out: Tensor = vocoder.head.out(vocoder.layer_norm(rows))
        magnitudes, phases = out.chunk(2, dim=-1)
        magnitudes = magnitudes.exp().clamp(max=LARGEST_MAGNITUDE).float()
        # Like the vendor's code, this computes the cosine and the sine in the dtype of the weights.
        spectra = torch.complex(magnitudes * phases.cos(), magnitudes * phases.sin())
        return self._overlapped(spectra)

    def _overlapped(self, spectra: Tensor) -> Tensor:
        """Convert complex spectra of shape [frames, bins] to samples of shape [frames * hop].

        The windowed frames are overlapped and added. The result is then divided by the sum of the
        squared windows.
        """
        window = self.module.vocoder.head.istft.window.float()
        frames = torch.fft.irfft(spectra, self._fft) * window
        weights = window.square().expand_as(frames)
        length = (len(frames) - 1) * self._hop + self._fft
        both = torch.stack((frames, weights)).transpose(1, 2)
        added, weight = fold(both, (1, length), (1, self._fft), stride=(1, self._hop))[:, 0, 0]
        beside = (self._fft - self._hop) // 2
        samples: Tensor = added[beside:-beside] / weight[beside:-beside]
        return samples


def _doubled(module: Any, rows: Tensor) -> Tensor:
    """Upsample rows of shape [n, inputs] to [stride * n, outputs].

    The convolution produces additional rows at the end. The normalization includes them before they
    are removed.
    """
    made: Tensor = module.norm(module.conv(rows.T[None]))
    return made[0, :, : len(rows) * module.conv.stride[0]].T


def _limit(size: int) -> int | None:
    return None if size < 0 else size
