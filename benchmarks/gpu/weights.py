"""Creates models with the released sizes and random weights on the device.

This avoids a file of 60 GB. Normalization layers and end tokens are not random, so that replies and
speech continue up to their limits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav
from transformers.utils import logging

from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon.runtime.checkpoint.submodule import construct
from antiphon_testkit.qwen3_omni.tiny_config import make_config
from antiphon_testkit.qwen3_omni.tiny_shape import SMALL, TinyShape
from antiphon_testkit.qwen3_omni.tiny_tokenizer import TOKENIZER

logging.set_verbosity_error()  # type: ignore[no-untyped-call]

ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)

RELEASED = TinyShape(
    hidden=2048,
    layers=48,
    heads=32,
    kv_heads=4,
    head_dim=128,
    experts=128,
    experts_per_token=8,
    expert_intermediate=768,
    accept_layer=24,
    talker_hidden=1024,
    talker_layers=20,
    talker_heads=16,
    talker_kv_heads=2,
    talker_head_dim=128,
    talker_experts=128,
    talker_experts_per_token=6,
    talker_expert_intermediate=384,
    code_groups=16,
    codebook_size=2048,
    predictor_layers=5,
    predictor_heads=16,
    predictor_kv_heads=8,
    predictor_head_dim=128,
    decoder_hidden=1024,
    decoder_layers=8,
    decoder_heads=16,
    decoder_kv_heads=16,
    decoder_dim=1536,
)
"""The sizes of Qwen3-Omni-30B-A3B, except for the text vocabulary and the towers."""
TINY = replace(SMALL, code_groups=16, codebook_size=1024)
"""The first codebook has many times more than `top_k` codes, so a code with a logit of 0 is not
drawn.
"""
ENTRIES = 151_643
"""The size of the released vocabulary, without special tokens."""
GAIN = 1.5
VOCODER_GAIN = 0.6
"""Small enough to prevent the samples from being clipped."""
SHARE_OF_LAYER = 0.1
"""The scale of a layer's output, for layers that have their own scaling weights."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes to measure: the `shape`, and the minimum number of `entries` in the vocabulary."""

    shape: TinyShape
    entries: int = 0


@cache
def whole_config(sizes: Sizes) -> Any:
    """Return the configuration of the complete model for transformers."""
    with tempfile.TemporaryDirectory() as directory:
        return config_of(sizes, TOKENIZER.write(Path(directory), entries=sizes.entries))


def sizes_of(device: torch.device) -> Sizes:
    """Return the released sizes on a GPU, and tiny sizes on a CPU, on which only the command is
    tested.
    """
    return Sizes(RELEASED, ENTRIES) if device.type == "cuda" else Sizes(TINY)


def config_of(sizes: Sizes, vocabulary: Any) -> Any:
    """Return the configuration with these sizes.

    For sizes that a shape does not define, the values of the released model are used.
    """
    config: Any = make_config(sizes.shape, vocabulary)
    if sizes.shape is RELEASED:
        config.talker_config.text_config.shared_expert_intermediate_size = 768
        config.talker_config.text_config.intermediate_size = 2048
        config.talker_config.code_predictor_config.intermediate_size = 3072
        config.code2wav_config.intermediate_size = 3072
    return config


def special_ids(config: Any) -> SpecialIds:
    """Return the special IDs of a configuration."""
    return SpecialIds.from_config(config.to_dict())


@torch.no_grad()
def random_module(
    module_class: type[ModuleT],
    config: Any,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    skip: Sequence[str] = (),
    gain: float = GAIN,
) -> ModuleT:
    """Return `module_class(config)` in evaluation mode, with weights generated on the device.

    The parameters are the same as for `load_submodule`. With a `gain` of 1, matrix products
    preserve the scale of their input.
    """
    device = torch.device(device)
    generator = torch.Generator(device).manual_seed(0)
    module = construct(module_class, config)
    for child in skip:
        setattr(module, child, None)
    made: dict[str, torch.Tensor] = {}
    for name, like in module.state_dict().items():
        if not like.is_floating_point():
            made[name] = like.to(device)
            continue
        weight = torch.empty(like.shape, dtype=dtype, device=device)
        if like.ndim > 1:
            fan_in = like[0].numel() if like.ndim != 3 or "experts" not in name else like.shape[2]
            weight.normal_(0.0, gain / fan_in**0.5, generator=generator)
        elif name.endswith((".bias", ".alpha", ".beta")):
            weight.zero_()
        elif name.endswith((".gamma", ".scale")):
            weight.fill_(SHARE_OF_LAYER)
        else:
            weight.fill_(1.0)
        made[name] = weight
    module.load_state_dict(made, assign=True)
    return module.to(device).requires_grad_(False).eval()


def random_code2wav(config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """Return a vocoder."""
    return random_module(
        Qwen3OmniMoeCode2Wav,
        config.code2wav_config,
        dtype=dtype,
        device=device,
        gain=VOCODER_GAIN,
    )


@torch.no_grad()
def end_never(module: Any, stop: int) -> None:
    """Set the logit of the token `stop` to 0. This is the median, so `top_k` excludes it."""
    head = module.codec_head if hasattr(module, "codec_head") else module.lm_head
    head.weight[stop] = 0.0
