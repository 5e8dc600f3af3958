"""Exact streaming decode: per session a state, and each frame decoded once.

Every layer of `Qwen3OmniMoeCode2Wav` is causal, so a session carries each
layer's own past and nothing is decoded twice: the samples of any split of the
frames, joined, are those of `Qwen3OmniMoeCode2Wav.forward` over all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCode2Wav,
    Qwen3OmniMoeCode2WavDecoderBlock,
)

from services.code2wav.layers import Layer, layer_of
from services.code2wav.transformer import SlidingTransformer


@dataclass(slots=True)
class StreamState:
    """What one session carries between calls: frames so far and each layer's tensors."""

    tensors: tuple[tuple[Tensor, ...], ...]
    frames: int = 0


class StreamDecoder:
    """A `Qwen3OmniMoeCode2Wav` that decodes any number of sessions frame by frame.

    The module is in evaluation mode and stays unchanged.
    Immutable after construction: all that changes is in a `StreamState`.
    Construction raises `FailedPrecondition` for a layer that cannot be streamed.
    """

    def __init__(self, module: Qwen3OmniMoeCode2Wav) -> None:
        self._module = module
        self._layers = _layers_of(module)
        self._dtype = module.code_embedding.weight.dtype
        self._device = module.code_embedding.weight.device

    @property
    def groups(self) -> int:
        """Codes in a frame."""
        return int(self._module.config.num_quantizers)

    @property
    def entries(self) -> int:
        """Entries of each codebook."""
        return int(self._module.config.codebook_size)

    @property
    def samples_per_frame(self) -> int:
        """Samples that each frame adds once the stream has started."""
        return int(self._module.total_upsample)

    @property
    def state_bytes(self) -> int:
        """Bytes that a session's state takes; the same at any length of stream."""
        numbers = sum(math.prod(shape) for layer in self._layers for shape in layer.state_shapes)
        return numbers * self._dtype.itemsize

    def samples(self, frames: int) -> int:
        """How many samples the first `frames` frames of a stream give."""
        count = frames
        for layer in self._layers:
            count = layer.outputs(count)
        return count

    @torch.inference_mode()
    def new_state(self) -> StreamState:
        """The state at the start of a stream."""
        return StreamState(
            tuple(
                tuple(
                    torch.zeros((1, *shape), dtype=self._dtype, device=self._device)
                    for shape in layer.state_shapes
                )
                for layer in self._layers
            )
        )

    @torch.inference_mode()
    def decode(self, state: StreamState, codes: Tensor) -> Tensor:
        """The samples that the next frames add: float [m] in [-1, 1], m may be 0.

        `codes` are int64 [n, groups], n at least 1, each in [0, entries); the caller has
        checked them. Working memory grows with n. After an exception the state is unusable.
        """
        module = self._module
        ids = codes.to(self._device).T[None] + module.code_offset
        x: Tensor = module.code_embedding(ids).mean(1).transpose(1, 2)
        seen = state.frames
        state.frames += len(codes)
        for layer, tensors in zip(self._layers, state.tensors, strict=True):
            x = layer.advance(tensors, x, seen)
            seen = layer.outputs(seen)
            # The start of a stream may not reach through; later layers have seen nothing.
            if not x.shape[-1]:
                return x.new_empty(0)
        return x.flatten().clamp(min=-1, max=1)


def _layers_of(module: Qwen3OmniMoeCode2Wav) -> tuple[Layer, ...]:
    """All layers after the code embedding, in the order of `Qwen3OmniMoeCode2Wav.forward`."""
    layers: list[Layer] = [SlidingTransformer(module.pre_transformer)]
    for stage in cast("list[nn.ModuleList]", list(module.upsample)):
        layers += [layer_of(each) for each in stage]
    for each in module.decoder:
        parts = each.block if isinstance(each, Qwen3OmniMoeCode2WavDecoderBlock) else (each,)
        layers += [layer_of(part) for part in parts]
    return tuple(layers)
