"""The weights of Qwen3-Omni's vocoder, under the same names as in the checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from antiphon_services.vocoder.modules import (
    CONVOLUTION,
    CausalConvolutionModule,
    CausalUpsampling,
    ConvNeXtBlock,
    SlidingTransformerModule,
    SnakeBeta,
    UpsamplingBlock,
)


class Code2WavModule(nn.Module):
    """All weights below `code2wav.`. `config` is `code2wav_config`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        hidden, width = config.hidden_size, config.decoder_dim
        self.pre_transformer = SlidingTransformerModule(config)
        self.code_embedding = nn.Embedding(config.codebook_size * config.num_quantizers, hidden)
        offsets = torch.arange(config.num_quantizers) * config.codebook_size
        self.code_offset = nn.Buffer(offsets, persistent=False)
        self.upsample = nn.ModuleList(
            nn.ModuleList([CausalUpsampling(hidden, hidden, each, each), ConvNeXtBlock(hidden)])
            for each in config.upsampling_ratios
        )
        rates = list(config.upsample_rates)
        last = width // 2 ** len(rates)
        self.decoder = nn.ModuleList(
            [
                CausalConvolutionModule(hidden, width, CONVOLUTION),
                *(UpsamplingBlock(width // 2**index, rate) for index, rate in enumerate(rates)),
                SnakeBeta(last),
                CausalConvolutionModule(last, 1, CONVOLUTION),
            ]
        )
