"""The decoder weights of Qwen3-TTS's 12 Hz codec, under the same names as in the checkpoint.

transformers doesn't have a class for this decoder, but its layers are the same as in Qwen3-Omni's
vocoder, with two differences. First, it begins with a residual vector quantizer, a convolution, and
a transformer between two projections. Second, its transposed convolutions are only trimmed at the
end. `antiphon_services.vocoder` computes with these modules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCausalTransConvNet,
    Qwen3OmniMoeCode2WavDecoderBlock,
    Qwen3OmniMoeCode2WavTransformerModel,
    Qwen3OmniMoeConvNeXtBlock,
    Qwen3OmniMoeSnakeBeta,
)

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config, reading
from antiphon.pipelines.qwen3_tts import CODEC_FOLDER
from antiphon.runtime.checkpoint.submodule import construct, load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon_services.qwen3_tts.code2wav.fields import PARTS
from antiphon_services.stage.config_fields import check_fields
from antiphon_services.vocoder.stream import Vocoder

# The vendor has another codec with 25 frames per second and different layers.
CODEC_KIND = "qwen3_tts_tokenizer_12hz"
# These classes have no annotations.
_Convolution: Any = Qwen3OmniMoeCausalConvNet
_Upsampling: Any = Qwen3OmniMoeCausalTransConvNet
_Snake: Any = Qwen3OmniMoeSnakeBeta

# The rows of a codebook are sums that must be divided by the entry's usage. The divisor is at least
# this value.
LEAST_USAGE = 1e-5


class CodecConfig(Qwen3OmniMoeCode2WavConfig):  # type: ignore[misc, no-untyped-call, unused-ignore]
    """`decoder_config` of `speech_tokenizer/config.json`."""

    codebook_dim: int = 512
    latent_dim: int = 1024


class _Codebook(nn.Module):
    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.empty(entries))
        self.embedding_sum = nn.Parameter(torch.empty(entries, width))

    def rows(self) -> Tensor:
        """Return the entries [entries, width]."""
        return self.embedding_sum / self.cluster_usage.clamp(min=LEAST_USAGE)[:, None]


class _Book(nn.Module):
    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self._codebook = _Codebook(entries, width)

    def rows(self) -> Tensor:
        """Return the entries [entries, width]."""
        return self._codebook.rows()


class _Books(nn.Module):
    def __init__(self, books: int, entries: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Book(entries, width) for _ in range(books)])


class _ResidualQuantizer(nn.Module):
    """Codebooks with half the width. One projection leads to this width (for encoding), and another
    one leads back.
    """

    def __init__(self, books: int, entries: int, width: int) -> None:
        super().__init__()
        self.input_proj = nn.Conv1d(width, width // 2, 1, bias=False)
        self.output_proj = nn.Conv1d(width // 2, width, 1, bias=False)
        self.vq = _Books(books, entries, width // 2)

    def tables(self) -> list[Tensor]:
        """Return the projected entries [entries, width] of each codebook."""
        weight = self.output_proj.weight[..., 0]
        books = cast("list[_Book]", list(self.vq.layers))
        return [functional.linear(book.rows(), weight) for book in books]


class _SplitQuantizer(nn.Module):
    """A quantizer whose first codebook has its own projections."""

    def __init__(self, books: int, entries: int, width: int) -> None:
        super().__init__()
        self.rvq_first = _ResidualQuantizer(1, entries, width)
        self.rvq_rest = _ResidualQuantizer(books - 1, entries, width)

    def table(self) -> Tensor:
        """Return all entries [books * entries, width]. A frame is the sum of the rows that belong
        to its codes.
        """
        return torch.cat([*self.rvq_first.tables(), *self.rvq_rest.tables()])


class _Transformer(Qwen3OmniMoeCode2WavTransformerModel):  # type: ignore[misc, no-untyped-call, unused-ignore]
    def __init__(self, config: CodecConfig) -> None:
        super().__init__(config)
        self.input_proj = nn.Linear(config.latent_dim, config.hidden_size)
        self.output_proj = nn.Linear(config.hidden_size, config.latent_dim)


class CodecDecoder(nn.Module):
    """All weights below `decoder.` in `speech_tokenizer/model.safetensors`."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        latent, width = config.latent_dim, config.decoder_dim
        self.config = config
        self.quantizer = _SplitQuantizer(
            config.num_quantizers, config.codebook_size, config.codebook_dim
        )
        self.pre_conv = _Convolution(config.codebook_dim, latent, 3)
        self.pre_transformer = _Transformer(config)
        self.upsample = nn.ModuleList(
            nn.ModuleList(
                [
                    _Upsampling(latent, latent, factor, factor),
                    Qwen3OmniMoeConvNeXtBlock(latent),
                ]
            )
            for factor in config.upsampling_ratios
        )
        blocks = [
            Qwen3OmniMoeCode2WavDecoderBlock(config, index)
            for index in range(len(config.upsample_rates))
        ]
        last = width // 2 ** len(blocks)
        self.decoder = nn.ModuleList(
            [
                _Convolution(latent, width, 7),
                *blocks,
                _Snake(last),
                _Convolution(last, 1, 7),
            ]
        )
        for each in self.modules():
            if isinstance(each, Qwen3OmniMoeCausalTransConvNet):
                each.left_pad = 0


def load_codec_decoder(
    model_dir: Path, dtype: torch.dtype, device: torch.device | str
) -> CodecDecoder:
    """Load a checkpoint's decoder. Raises `FailedPrecondition` if it can't be loaded."""
    config, weights = _codec_config(model_dir), Weights(model_dir / CODEC_FOLDER)
    return load_submodule(CodecDecoder, config, "decoder.", weights, dtype=dtype, device=device)


def describe_codec_decoder(model_dir: Path) -> CodecDecoder:
    """Return a checkpoint's decoder without allocating memory for its weights. Raises
    `FailedPrecondition` if the configuration can't be used.
    """
    return construct(CodecDecoder, _codec_config(model_dir))


def _codec_config(model_dir: Path) -> CodecConfig:
    """Return the decoder's configuration. Raises `FailedPrecondition` if it can't be used."""
    folder = model_dir / CODEC_FOLDER
    codec = read_config(folder)
    kind, part = codec.get("model_type"), codec.get("decoder_config")
    if kind != CODEC_KIND:
        raise FailedPrecondition(
            f"{folder / CONFIG_FILE}: model_type is {kind!r}, but only {CODEC_KIND} is "
            "supported; use a checkpoint with that codec"
        )
    if not isinstance(part, dict):
        raise FailedPrecondition(
            f"{folder / CONFIG_FILE}: decoder_config is missing or not an object; {REMEDY}"
        )
    check_fields(folder / CONFIG_FILE, codec, PARTS)
    with reading(folder / CONFIG_FILE):
        return CodecConfig.from_dict(part)


def vocoder_of(module: CodecDecoder) -> Vocoder:
    """Describe the decoder so that it can be streamed."""
    config = module.config
    with torch.no_grad():
        table = module.quantizer.table()
    offset = torch.arange(config.num_quantizers, device=table.device) * config.codebook_size

    def embed(codes: Tensor) -> Tensor:
        return functional.embedding(codes + offset, table).sum(2)

    transformer = module.pre_transformer
    upsample = cast("list[nn.ModuleList]", list(module.upsample))
    return Vocoder(
        groups=int(config.num_quantizers),
        entries=int(config.codebook_size),
        embed=embed,
        modules=[
            module.pre_conv,
            transformer.input_proj,
            transformer,
            transformer.output_proj,
            *(part for stage in upsample for part in stage),
            *module.decoder,
        ],
    )
