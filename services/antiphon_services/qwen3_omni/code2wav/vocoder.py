"""Describes Qwen3-Omni's vocoder so that `antiphon_services.vocoder` can stream it."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from antiphon_services.qwen3_omni.code2wav.module import Code2WavModule
from antiphon_services.vocoder.stream import Vocoder


def vocoder_of(module: Code2WavModule) -> Vocoder:
    """Return the embedding and the layers, in the order in which `Qwen3OmniMoeCode2Wav.forward`
    applies them.
    """
    table, offset = module.code_embedding.weight.detach(), module.code_offset.flatten()

    def embed(codes: Tensor) -> Tensor:
        return functional.embedding(codes + offset, table).mean(2)

    upsample = cast("list[nn.ModuleList]", list(module.upsample))
    return Vocoder(
        groups=int(module.config.num_quantizers),
        entries=int(module.config.codebook_size),
        embed=embed,
        modules=[
            module.pre_transformer,
            *(part for stage in upsample for part in stage),
            *module.decoder,
        ],
    )
