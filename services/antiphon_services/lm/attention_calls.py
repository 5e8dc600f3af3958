"""Attention calls, arranged so that a fused kernel accepts them.

On a CPU, torch has one kernel for everything. On a GPU there are three. Flash, the fast one,
supports grouped-query attention and causal rows, but no mask and no float32. Memory-efficient
attention supports masks and float32, but needs as many key heads as query heads. Otherwise
attention is computed in pieces, with all scores in memory. Therefore:

- Single rows of different sequences form one product per key head, with the query heads as its
  rows. Only several sequences need a mask. A single sequence has none, because flash then splits
  the length across processors, whereas the other kernel uses one processor per key head.
- Rows of a prompt use flash where it is available, without a mask.
- Elsewhere, as in float32, each key head is treated as a sequence whose keys its query heads share
  by a view. Rows after the first part of a prompt have a mask.
- Masks are additive and aligned. torch converts boolean masks and copies others, in every layer.
- cuDNN's attention is disabled. On Hopper and Blackwell torch prefers it, but it plans each new
  combination of shapes and strides on the host for tens of milliseconds, and a growing sequence has
  a new one with every frame.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from antiphon_services.lm.kv_cache import CacheShape

# Limits of flash: largest head size, and its multiple.
FLASH_WIDTH, FLASH_MULTIPLE = 256, 8
FLASH_CAPABILITY = (8, 0)
MASK_STRIDE = 8
"""In elements; memory-efficient attention reads a mask in place if its rows are so aligned."""


@dataclass(frozen=True, slots=True)
class Call:
    """Rows that attend together: those of one part of a prompt, or one row of each of several
    slots.

    They see the first `length` positions of `slots`. `mask` adds 0 or -inf: [n, length] for n rows
    of a prompt, [n, 1, 1, length] for single rows. It is None if everything is visible, and if a
    prompt's attention is causal, `from_start` or by flash.
    """

    rows: slice
    slots: slice | Tensor
    length: int
    mask: Tensor | None = None
    prompt: bool = False
    from_start: bool = False

    def mix(self, queries: Tensor, memory: Tensor, shape: CacheShape) -> Tensor:
        """Return the attention output of its rows [n, heads, head_dim] over a layer's memory, same
        shape."""
        seen = memory[:, : self.length][self.slots].transpose(1, 2)
        keys, values = seen.chunk(2, dim=1)
        if not self.prompt:
            # Query heads that share a key head are rows of one product, so it is read once.
            asked = queries.view(len(queries), shape.key_heads, -1, shape.head_dim)
            mixed = scaled_dot_product_attention(
                asked, keys, values, attn_mask=self.mask, scale=shape.scale
            )
            return mixed.flatten(1, 2)
        if groups_heads(shape):
            return self._grouped(queries, keys, values, shape.scale)
        return self._spread(queries, keys, values, shape)

    def _grouped(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Attention of a prompt's rows with a kernel for grouped-query attention."""
        asked = queries.transpose(0, 1)[None]
        if self.mask is not None or self.from_start:
            mixed = scaled_dot_product_attention(
                asked, keys, values, attn_mask=self.mask, is_causal=self.from_start, scale=scale,
                enable_gqa=True,
            )  # fmt: skip
        else:
            # The last row sees everything. torch's `causal_lower_right` means the same but needs an
            # object per call; `is_causal` of the other function would align to the first row.
            mixed = torch.ops.aten._scaled_dot_product_flash_attention(
                asked, keys, values, is_causal=True, scale=scale
            )[0]
        return mixed[0].transpose(0, 1)

    def _spread(self, queries: Tensor, keys: Tensor, values: Tensor, shape: CacheShape) -> Tensor:
        """Attention of a prompt's rows with a kernel that needs equal numbers of heads."""
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
    """Rows of `sequences` new prompts that attend together, padded to `length` each.

    A new prompt sees only its own rows, so nothing is read from the cache. If lengths differ,
    `filled` int64 [sequences * length] is the row at each padded place, with a prompt's last row
    repeated, and `own` int64 [n] is the place of each row.
    """

    rows: slice
    sequences: int
    length: int
    filled: Tensor | None = None
    own: Tensor | None = None

    @property
    def prompt(self) -> bool:
        """As in `Call`."""
        return True

    def mix(self, queries: Tensor, memory: Tensor, shape: CacheShape) -> Tensor:
        """Return the attention output over `memory`, the rows' keys and values [n, 2 * key heads,
        head_dim]."""
        if self.filled is not None:
            queries, memory = (each.index_select(0, self.filled) for each in (queries, memory))
        asked, seen = (
            each.view(self.sequences, self.length, -1, shape.head_dim).transpose(1, 2)
            for each in (queries, memory)
        )
        keys, values = seen.chunk(2, dim=1)
        # Padding follows a prompt's own rows, so causal attention hides it from them.
        mixed = scaled_dot_product_attention(
            asked, keys, values, is_causal=True, scale=shape.scale, enable_gqa=True
        )
        mixed = mixed.transpose(1, 2).flatten(0, 1)
        return mixed if self.own is None else mixed.index_select(0, self.own)


def additive_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask for all layers of a forward: -inf where `hidden` bool [..., keys], else 0.

    On a GPU all strides but the last are multiples of `MASK_STRIDE`, so kernels read it in place.
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
    """Disable cuDNN's attention in this process; see the module."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def groups_heads(shape: CacheShape) -> bool:
    """Return whether the kernel for a prompt's rows supports grouped-query attention."""
    return shape.device.type == "cpu" or flash_takes(shape)


def flash_takes(shape: CacheShape) -> bool:
    """Return whether torch's flash kernel supports these heads on this device."""
    fits = shape.head_dim <= FLASH_WIDTH and shape.head_dim % FLASH_MULTIPLE == 0
    return (
        fits
        and shape.device.type != "cpu"
        and shape.dtype in (torch.bfloat16, torch.float16)
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(shape.device) >= FLASH_CAPABILITY
    )
