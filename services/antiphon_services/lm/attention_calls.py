"""The calls of attention that a plan makes, asked for so that a fused kernel takes them.

On a CPU torch has one kernel for all. On a GPU the fast one, flash, takes key heads that several
query heads share and makes rows causal itself, but takes no mask and no float32; the next one,
memory-efficient attention, takes both and wants as many key heads as query heads; what neither
takes is computed in pieces, with all scores in memory. So

- rows of different sequences, one each, are a product for each key head, whose query heads are its
  rows; only several sequences need a mask. A lone one has none, for flash divides what is seen by
  one row among the processors, and the other kernel gives a key head to one of them;
- rows of a prompt go to flash where it runs, without a mask;
- where it does not, as in float32, each key head is a sequence of its own, whose keys its query
  heads share by a view; rows behind others of their prompt have a mask;
- a mask is additive, with rows that begin where the kernel can read them: torch converts a boolean
  mask, and copies one with other strides, in every layer;
- cuDNN's attention is switched off. On Hopper and Blackwell torch prefers it, but it plans each new
  combination of shapes and strides on the host, for tens of milliseconds, and a sequence that
  grows brings a new one with every frame.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from antiphon_services.lm.kv_cache import CacheShape

# Flash's own: heads of so many values at most, and of a multiple of so many.
FLASH_WIDTH, FLASH_MULTIPLE = 256, 8
FLASH_CAPABILITY = (8, 0)
MASK_STRIDE = 8
"""Elements: memory-efficient attention reads a mask in place if its rows begin at multiples."""


@dataclass(frozen=True, slots=True)
class Call:
    """Rows that attend together: those of one part of a prompt, or one of each of several slots.

    They see the first `length` positions of `slots`. `mask` adds 0 or -inf: [n, length] of a
    prompt's n rows, [n, 1, 1, length] of one row each. None where all is seen, and where
    attention of a prompt's rows is causal `from_start` or made so by flash.
    """

    rows: slice
    slots: slice | Tensor
    length: int
    mask: Tensor | None = None
    prompt: bool = False
    from_start: bool = False

    def mix(self, queries: Tensor, memory: Tensor, shape: CacheShape) -> Tensor:
        """What its rows [n, heads, head_dim] saw of a layer's memory, of the same shape."""
        seen = memory[:, : self.length][self.slots].transpose(1, 2)
        keys, values = seen.chunk(2, dim=1)
        if not self.prompt:
            # Query heads that share a key head are rows of one product: it is read once.
            asked = queries.view(len(queries), shape.key_heads, -1, shape.head_dim)
            mixed = scaled_dot_product_attention(
                asked, keys, values, attn_mask=self.mask, scale=shape.scale
            )
            return mixed.flatten(1, 2)
        if groups_heads(shape):
            return self._grouped(queries, keys, values, shape.scale)
        return self._spread(queries, keys, values, shape)

    def _grouped(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """A prompt's rows, where the kernel takes key heads that query heads share."""
        asked = queries.transpose(0, 1)[None]
        if self.mask is not None or self.from_start:
            mixed = scaled_dot_product_attention(
                asked, keys, values, attn_mask=self.mask, is_causal=self.from_start, scale=scale,
                enable_gqa=True,
            )  # fmt: skip
        else:
            # The last row sees all. torch's `causal_lower_right` asks for the same, by an object
            # for each call; its other function takes `is_causal` for the first row sees one.
            mixed = torch.ops.aten._scaled_dot_product_flash_attention(
                asked, keys, values, is_causal=True, scale=scale
            )[0]
        return mixed[0].transpose(0, 1)

    def _spread(self, queries: Tensor, keys: Tensor, values: Tensor, shape: CacheShape) -> Tensor:
        """A prompt's rows, where it does not."""
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
    """The rows of `sequences` prompts that begin and attend together, padded to `length` each.

    A prompt that begins sees its own rows alone, so nothing is read from the slots. Where lengths
    differ, `filled` int64 [sequences * length] says which row stands at each padded place, the
    last one of a prompt at those behind it, and `own` int64 [n] where the rows are among these.
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
        """What the rows saw of `memory`, their own keys and values [n, 2 * key heads, head_dim]."""
        if self.filled is not None:
            queries, memory = (each.index_select(0, self.filled) for each in (queries, memory))
        asked, seen = (
            each.view(self.sequences, self.length, -1, shape.head_dim).transpose(1, 2)
            for each in (queries, memory)
        )
        keys, values = seen.chunk(2, dim=1)
        # Padding comes after a prompt's own rows, so causal attention hides it from them.
        mixed = scaled_dot_product_attention(
            asked, keys, values, is_causal=True, scale=shape.scale, enable_gqa=True
        )
        mixed = mixed.transpose(1, 2).flatten(0, 1)
        return mixed if self.own is None else mixed.index_select(0, self.own)


def additive_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask for all layers of a forward: -inf where `hidden` bool [..., keys], else 0.

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
    """Let no attention call of this process go to cuDNN; see above."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def groups_heads(shape: CacheShape) -> bool:
    """Whether the kernel for a prompt's rows takes key heads that query heads share."""
    return shape.device.type == "cpu" or flash_takes(shape)


def flash_takes(shape: CacheShape) -> bool:
    """Whether torch has a flash kernel for these heads, and its device runs it."""
    fits = shape.head_dim <= FLASH_WIDTH and shape.head_dim % FLASH_MULTIPLE == 0
    return (
        fits
        and shape.device.type != "cpu"
        and shape.dtype in (torch.bfloat16, torch.float16)
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(shape.device) >= FLASH_CAPABILITY
    )
