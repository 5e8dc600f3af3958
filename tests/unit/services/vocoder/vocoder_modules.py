"""Tiny `Qwen3OmniMoeCode2Wav` modules for the tests of the vocoder, and what they decode."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.chunk import Tensors
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason
from antiphon_services.qwen3_omni.code2wav.vocoder import vocoder_of
from antiphon_services.vocoder.audio_segment import VocoderEdges
from antiphon_services.vocoder.batch import StreamStates
from antiphon_services.vocoder.stream import StreamDecoder, StreamPiece

ENTRIES = 32
FRAMES = 60
LOUDNESS = 0.9
NO_SAMPLING = Sampling(0.0, 0, 1.0, 1.0, 0, 1)
# No pipeline calls them so: the engine has no names of its own.
EDGES = VocoderEdges(frames="frames", audio="sound")
WANTED = SegmentSettings("", NO_SAMPLING, frozenset({"sound"}))

_SIZES: dict[str, Any] = {
    "codebook_size": ENTRIES,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_quantizers": 4,
    "decoder_dim": 32,
}

# ODD has rates of its own, shared key heads and a window that most frames leave;
# RELEASED the rates and the window of the released model; with BARE nothing comes
# before the overlapping transposed convolutions, so that two frames give no sample.
CONFIGS: dict[str, dict[str, Any]] = {
    "odd": _SIZES
    | {
        "num_key_value_heads": 2,
        "sliding_window": 5,
        "num_hidden_layers": 3,
        "upsample_rates": (3, 2),
        "upsampling_ratios": (2, 3),
    },
    "released": _SIZES
    | {
        "num_key_value_heads": 4,
        "sliding_window": 72,
        "upsample_rates": (8, 5, 4, 3),
        "upsampling_ratios": (2, 2),
    },
    "bare": _SIZES
    | {
        "num_key_value_heads": 1,
        "sliding_window": 1,
        "upsample_rates": (1, 1, 2),
        "upsampling_ratios": (),
    },
}


def build_module(dtype: torch.dtype = torch.float64, **config: Any) -> Qwen3OmniMoeCode2Wav:
    """A module with random weights under which every layer counts and little saturates."""
    module = Qwen3OmniMoeCode2Wav(Qwen3OmniMoeCode2WavConfig(**config)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(_draw(name, parameter, generator))
        _set_loudness(module)
    return module.to(dtype)


@functools.cache
def module_of(name: str, dtype: torch.dtype = torch.float64) -> Qwen3OmniMoeCode2Wav:
    """The module of a configuration in `CONFIGS`."""
    return build_module(dtype, **CONFIGS[name])


@functools.cache
def decoder_of(name: str, dtype: torch.dtype = torch.float64) -> StreamDecoder:
    """The decoder of a configuration in `CONFIGS`."""
    return StreamDecoder(vocoder_of(module_of(name, dtype)))


def make_codes(frames: int, seed: int = 0) -> Tensor:
    """Random codes, int64 [frames, groups]."""
    generator = torch.Generator().manual_seed(seed)
    shape = (frames, _SIZES["num_quantizers"])
    return torch.randint(0, ENTRIES, shape, generator=generator)


@torch.inference_mode()
def one_shot(module: Qwen3OmniMoeCode2Wav, codes: Tensor) -> Tensor:
    """What Hugging Face makes of all frames at once: [samples]."""
    samples: Tensor = module(codes.T[None])[0, 0]
    return samples


def piece_of(slot: int, codes: Tensor) -> StreamPiece:
    """Frames of a slot, from int64 [n, groups]."""
    return StreamPiece(slot, codes.numpy().astype(np.uint16))


def codes_chunk(
    codes: Tensor, position: int, finish: FinishReason | None = None, *, prime: bool = False
) -> InputChunk:
    """A chunk of these frames, int64 [n, groups]; with a finish reason the last one."""
    tensors: Tensors = {"frames": codes.numpy().astype(np.uint16)} if len(codes) else {}
    return InputChunk("frames", position, tensors, finish is not None, finish, prime)


def fresh_states(decoder: StreamDecoder, slots: int = 1) -> StreamStates:
    """States at the start of a stream, in memory that held something else before."""
    states = decoder.new_states(slots)
    states.memory.fill_(math.nan)
    for slot in range(slots):
        states.reset(slot)
    return states


def stream(decoder: StreamDecoder, codes: Tensor, sizes: Iterable[int]) -> Tensor:
    """What the decoder makes of the frames in calls of these sizes: [samples]."""
    states = fresh_states(decoder)
    pieces = [piece_of(0, each) for each in codes.split(list(sizes))]
    return torch.cat([decoder.decode(states, [piece])[0] for piece in pieces])


def sizes_of(total: int, size: int) -> list[int]:
    """`total` in pieces of `size`, the last one shorter."""
    whole, rest = divmod(total, size)
    return [size] * whole + [rest] * bool(rest)


def _draw(name: str, like: Tensor, generator: torch.Generator) -> Tensor:
    """Values for a parameter."""
    noise = torch.randn(like.shape, generator=generator)
    if name.endswith((".scale", ".gamma")):
        return 0.5 + 0.1 * noise
    if "norm" in name:
        return 1.0 + 0.1 * noise if name.endswith("weight") else 0.1 * noise
    if like.ndim == 1:
        return 0.1 * noise
    return noise if "embedding" in name else noise / math.sqrt(like[0].numel())


def _set_loudness(module: Qwen3OmniMoeCode2Wav) -> None:
    """Scale the last convolution so that samples are spread but stay inside (-1, 1)."""
    last = module.decoder[-1].conv
    last.bias.zero_()
    last.weight.mul_(1e-3)
    last.weight.mul_(LOUDNESS / one_shot(module, make_codes(FRAMES)).abs().max())
