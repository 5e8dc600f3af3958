"""The talker of Ming TTS. Tensors have the same names as in its checkpoint.

The language model is Qwen2 of transformers. The modules only store weights. The computations of the
language model are in `antiphon_services.lm`. The flow head and the aggregator are computed in
`blocks.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from antiphon.pipelines.ming_tts import LATENT_WIDTH, SPEAKER_WIDTH
from antiphon_services.lm.qwen2_config import Qwen2Config
from antiphon_services.lm.qwen2_stack import Qwen2Stack

AUDIO = "audio"
"""The module that contains the audio encoder and the audio decoder, which are loaded separately."""

FLASH_UNUSED = ("aggregator.rotary_embed.inv_freq", "cfm.model.rotary_embed.inv_freq")
"""The equivalent of `UNUSED` in the layout of Ming-flash-omni."""

UNUSED = (
    "model.lm_head.weight",
    "linear_proj_audio.rotary_embed.inv_freq",
    "flowloss.cfm.model.rotary_embed.inv_freq",
)
"""Tensors that are not loaded: the language model head, and buffers that are computed instead."""

TIME_WIDTH = 256


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """The sizes of the flow head or the aggregator."""

    width: int
    layers: int
    heads: int
    ratio: float

    @classmethod
    def of(cls, told: dict[str, Any]) -> BlockSizes:
        """Read the sizes from the checkpoint's `config.json`."""
        return cls(told["hidden_size"], told["depth"], told["num_heads"], told["mlp_ratio"])


@dataclass(frozen=True, slots=True)
class TalkerSizes:
    """The sizes of the talker."""

    language_model: Qwen2Config
    flow: BlockSizes
    aggregator: BlockSizes


class MingTalkerModule(nn.Module):
    """All tensors of the checkpoint except `AUDIO` and `UNUSED`."""

    noisy_end = False
    """Whether the flow adds noise after its last step."""

    def __init__(self, sizes: TalkerSizes) -> None:
        super().__init__()
        width = sizes.language_model.hidden_size
        self.model = nn.Module()
        self.model.model = Qwen2Stack(sizes.language_model, words=True)
        self.linear_proj_audio = _Blocks(sizes.aggregator, width)
        self.linear_proj_audio.word_embedder = nn.Embedding(1, sizes.aggregator.width)
        self.flowloss = nn.Module()
        self.flowloss.cfm = nn.Module()
        self.flowloss.cfm.model = _FlowHead(sizes.flow, width)
        self.stop_head = nn.Linear(width, 2)
        self.spk_head = nn.Linear(SPEAKER_WIDTH, width)

    @property
    def stack(self) -> Any:
        """The decoder layers and the word embeddings. The interface is the one that `lm.decoder`
        requires.
        """
        return self.model.model

    @property
    def flow_head(self) -> Any:
        """The network of the flow."""
        return self.flowloss.cfm.model  # type: ignore[union-attr]

    @property
    def latent_aggregator(self) -> Any:
        """The network that converts latents to rows."""
        return self.linear_proj_audio


class FlashTalkerModule(nn.Module):
    """The talker of Ming-flash-omni, except for `FLASH_UNUSED`.

    It consists of the same parts as `MingTalkerModule`, but their names are different.
    """

    noisy_end = True

    def __init__(self, sizes: TalkerSizes) -> None:
        super().__init__()
        width = sizes.language_model.hidden_size
        self.model = Qwen2Stack(sizes.language_model, words=True)
        self.aggregator = _Blocks(sizes.aggregator, width)
        self.aggregator.word_embedder = nn.Embedding(1, sizes.aggregator.width)
        self.cfm = nn.Module()
        self.cfm.model = _FlowHead(sizes.flow, width)
        self.stop_head = nn.Linear(width, 2)
        self.spk_head = nn.Linear(SPEAKER_WIDTH, width)

    @property
    def stack(self) -> Any:
        """The decoder layers and the word embeddings. The interface is the one that `lm.decoder`
        requires.
        """
        return self.model

    @property
    def flow_head(self) -> Any:
        """The network of the flow."""
        return self.cfm.model

    @property
    def latent_aggregator(self) -> Any:
        """The network that converts latents to rows."""
        return self.aggregator


class _Blocks(nn.Module):
    def __init__(self, sizes: BlockSizes, outputs: int) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.x_embedder = nn.Linear(LATENT_WIDTH, sizes.width)
        self.blocks = nn.ModuleList(_BlockModule(sizes) for _ in range(sizes.layers))
        self.final_layer = nn.Module()
        self.final_layer.norm_final = _NormWeight(sizes.width)
        self.final_layer.linear = nn.Linear(sizes.width, outputs)


class _FlowHead(_Blocks):
    def __init__(self, sizes: BlockSizes, condition: int) -> None:
        super().__init__(sizes, LATENT_WIDTH)
        self.t_embedder = nn.Module()
        self.t_embedder.time_mlp = nn.Sequential(
            nn.Linear(TIME_WIDTH, sizes.width), nn.SiLU(), nn.Linear(sizes.width, sizes.width)
        )
        self.c_embedder = nn.Module()
        self.c_embedder.cond_embedder = nn.Linear(condition, sizes.width)


class _BlockModule(nn.Module):
    def __init__(self, sizes: BlockSizes) -> None:
        super().__init__()
        width, inner = sizes.width, int(sizes.width * sizes.ratio)
        self.norm1, self.norm2 = _NormWeight(width), _NormWeight(width)
        self.attn = nn.Module()
        self.attn.to_q = nn.Linear(width, width)
        self.attn.to_k = nn.Linear(width, width)
        self.attn.to_v = nn.Linear(width, width)
        self.attn.to_out = nn.ModuleList([nn.Linear(width, width)])
        self.mlp = nn.Module()
        self.mlp.ff = nn.ModuleDict(
            {"0": nn.ModuleList([nn.Linear(width, inner)]), "2": nn.Linear(inner, width)}
        )


class _NormWeight(nn.Module):
    """The weight of an RMS normalization layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
