"""Arranges attention calls so that they can use a fused kernel.

On a CPU, torch has one kernel that supports everything. On a GPU, there are three options:

- Flash attention is the fastest. It supports grouped-query attention and causal rows, but neither
  masks nor float32.
- Memory-efficient attention supports masks and float32, but requires as many key heads as query
  heads.
- Otherwise, torch computes attention with separate operations and keeps all scores in memory.

This leads to the following rules:

- Single rows of different sequences form one product per key head, in which the query heads are the
  rows. A mask is only needed if there are several sequences. A lone sequence is computed without a
  mask, so that flash attention can be used. It can split the sequence across multiprocessors, while
  the memory-efficient kernel uses only one multiprocessor per key head.
- The rows of a prompt use flash attention without a mask if it is available.
- Otherwise, for example in float32, each key head is treated as a sequence, and its query heads
  share the keys through a view. Rows that follow the first part of a prompt have a mask.
- Masks are additive and aligned. If a mask is boolean, torch converts it in every layer. If it
  isn't aligned, torch copies it in every layer.
- cuDNN's attention is disabled. torch prefers it on Hopper and Blackwell, but cuDNN spends tens of
  milliseconds on the host to plan each new combination of shapes and strides, and a growing
  sequence produces a new combination with every frame.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from antiphon_services.lm.kv_cache import CacheShape

# Flash attention supports heads of up to this size, and only multiples of the second number.
FLASH_WIDTH, FLASH_MULTIPLE = 256, 8
FLASH_CAPABILITY = (8, 0)
MASK_STRIDE = 8
"""The alignment of mask rows, in elements. Memory-efficient attention reads an aligned mask in
place.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """Rows whose attention is computed together: either the rows of one part of a prompt, or a
    single row from each of several slots.

    The rows can attend to the first `length` positions of `slots`. `mask` contains 0 or -inf and is
    added to the scores. Its shape is [n, length] for n rows of a prompt, and [n, 1, 1, length] for
    single rows. `mask` is None if all positions are visible. It is also None for a prompt whose
    attention can be computed as causal attention. This is the case if the rows are the beginning of
    the prompt (`from_start`) or if flash attention is used.
    """

    rows: slice
    slots: slice | Tensor
    length: int
    mask: Tensor | None = None
    prompt: bool = False
    from_start: bool = False

    def mix(self, queries: Tensor, memory: Tensor, shape: CacheShape) -> Tensor:
        """Return the attention output [n, heads, head_dim] for the rows, given the memory of a
        layer. The output has the same shape as `queries`.
        """
        seen = memory[:, : self.length][self.slots].transpose(1, 2)
        keys, values = seen.chunk(2, dim=1)
        if not self.prompt:
            # Query heads that share a key head are rows of the same product, so that the key head
            # is read only once.
            asked = queries.view(len(queries), shape.key_heads, -1, shape.head_dim)
            mixed = scaled_dot_product_attention(
                asked, keys, values, attn_mask=self.mask, scale=shape.scale
            )
            return mixed.flatten(1, 2)
        if groups_heads(shape):
            return self._grouped(queries, keys, values, shape.scale)
        return self._spread(queries, keys, values, shape)

    def _grouped(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Compute attention for the rows of a prompt with a kernel that supports grouped-query
        attention.
        """
        asked = queries.transpose(0, 1)[None]
        if self.mask is not None or self.from_start:
            mixed = scaled_dot_product_attention(
                asked, keys, values, attn_mask=self.mask, is_causal=self.from_start, scale=scale,
                enable_gqa=True,
            )  # fmt: skip
        else:
            # The last row can attend to all positions. torch's `causal_lower_right` has the same
            # meaning but needs an object for each call. `is_causal` of the other function would
            # align the mask to the first row.
            mixed = torch.ops.aten._scaled_dot_product_flash_attention(
                asked, keys, values, is_causal=True, scale=scale
            )[0]
        return mixed[0].transpose(0, 1)

    def _spread(self, queries: Tensor, keys: Tensor, values: Tensor, shape: CacheShape) -> Tensor:
        """Compute attention for the rows of a prompt with a kernel that requires equal numbers of
        heads.
        """
        by_key_head = queries.view(len(queries), shape.key_heads, -1, shape.head_dim)
        asked = by_key_head.permute(1, 2, 0, 3)
        keys, values = (
            each[0][:, None].expand(-1, asked.shape[1], -1, -1) for each in (keys, values)
        )
        mixed = scaled_dot_product_attention(
            asked,
            keys,
            values,
            attn_mask=self.mask,
            is_causal=self.from_start,
            scale=shape.scale,
        )
        return mixed.permute(2, 0, 1, 3).flatten(1, 2)


@dataclass(frozen=True, slots=True)
class Beginnings:
    """The rows of `sequences` new prompts whose attention is computed together. Each prompt is
    padded to `length` rows.

    A new prompt only attends to its own rows, so nothing has to be read from the cache. If the
    prompts differ in length, `filled` (int64 [sequences * length]) contains the row index for each
    place of the padded layout. Padding repeats the prompt's last row. `own` (int64 [n]) contains
    the padded place of each row.
    """

    rows: slice
    sequences: int
    length: int
    filled: Tensor | None = None
    own: Tensor | None = None

    @property
    def prompt(self) -> bool:
        """See `Call.prompt`."""
        return True

    def mix(self, queries: Tensor, memory: Tensor, shape: CacheShape) -> Tensor:
        """Return the attention output. `memory` contains the keys and values of the rows [n, 2 *
        key heads, head_dim].
        """
        if self.filled is not None:
            queries, memory = (each.index_select(0, self.filled) for each in (queries, memory))
        asked, seen = (
            each.view(self.sequences, self.length, -1, shape.head_dim).transpose(1, 2)
            for each in (queries, memory)
        )
        keys, values = seen.chunk(2, dim=1)
        # Padding comes after the rows of a prompt, so causal attention hides it from them.
        mixed = scaled_dot_product_attention(
            asked, keys, values, is_causal=True, scale=shape.scale, enable_gqa=True
        )
        mixed = mixed.transpose(1, 2).flatten(0, 1)
        return mixed if self.own is None else mixed.index_select(0, self.own)


def additive_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask that can be used by all layers of a forward pass. It is -inf where `hidden`
    (bool [..., keys]) is true, and 0 elsewhere.

    On a GPU, all strides except the last are multiples of `MASK_STRIDE`, so that kernels can read
    the mask in place.
    """
    keys = hidden.shape[-1]
    if hidden.device.type == "cpu":
        zeros = torch.zeros(hidden.shape, dtype=dtype)
    else:
        room = -(-keys // MASK_STRIDE) * MASK_STRIDE
        size = (*hidden.shape[:-1], room)
        zeros = torch.zeros(size, dtype=dtype, device=hidden.device)[..., :keys]
    return zeros.masked_fill_(hidden, -math.inf)


def disable_cudnn_attention() -> None:
    """Disable cuDNN's attention in this process, for the reason given in the module's docstring."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def groups_heads(shape: CacheShape) -> bool:
    """Return whether the kernel that is used for the rows of a prompt supports grouped-query
    attention.
    """
    return shape.device.type == "cpu" or flash_takes(shape)


def flash_takes(shape: CacheShape) -> bool:
    """Return whether torch's flash kernel supports heads of this shape on this device."""
    fits = shape.head_dim <= FLASH_WIDTH and shape.head_dim % FLASH_MULTIPLE == 0
    return (
        fits
        and shape.device.type != "cpu"
        and shape.dtype in (torch.bfloat16, torch.float16)
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(shape.device) >= FLASH_CAPABILITY
    )
