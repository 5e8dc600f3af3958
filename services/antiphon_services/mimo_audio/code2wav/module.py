"""The decoder weights of MiMo-Audio's audio tokenizer. Tensors have the same names as in its
checkpoint.

The computations are in `decoder.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from antiphon_services.vocoder.rotary_layers import RotaryLayer


class CodecDecoderModule(nn.Module):
    """All tensors below `decoder.`. `config` is the `config.json` of the audio tokenizer."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, bins = config["d_model"], config["n_mels"]
        pooled = config["avg_pooler"]
        self.dconv1 = _Upsampled(width, width, pooled, pooled)
        self.layers = nn.ModuleList(
            RotaryLayer(width, config["decoder_attention_heads"], config["decoder_ffn_dim"])
            for _ in range(config["decoder_layers"])
        )
        self.layer_norm = nn.LayerNorm(width)
        self.dconv2 = _Upsampled(
            width, bins, config["decoder_kernel_size"], config["decoder_stride_size"]
        )
        self.vocoder = _Vocoder(config)


class _Upsampled(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride)
        self.norm = nn.GroupNorm(1, outputs)


class _Vocoder(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width = config["vocoder_dim"]
        self.embeddings = nn.Linear(config["n_mels"], width, bias=False)
        heads, inner = config["vocoder_attention_heads"], config["vocoder_intermediate_dim"]
        self.layers = nn.ModuleList(
            RotaryLayer(width, heads, inner) for _ in range(config["vocoder_num_layers"])
        )
        self.layer_norm = nn.LayerNorm(width)
        self.head = _Head(width, config["nfft"])


class _Head(nn.Module):
    def __init__(self, width: int, fft: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, fft + 2)
        self.istft = _Window(fft)


class _Window(nn.Module):
    window: torch.Tensor

    def __init__(self, fft: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(fft))
