"""Computes the input rows of the language model from text tokens and groups of frames.

A position is either a text token, or the token `<|empty|>` together with a group of frames. The
frames of a group attend to each other, but not to other groups. The vendor's code requests this
with `is_causal=False`, which only one of the attention kernels in transformers supports. This
module computes attention without a mask instead.

The vendor's code adds the embeddings of a frame's codes in bfloat16, regardless of the dtype of the
weights. This module adds them in the dtype of the weights. For bfloat16 weights, the result is the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, scaled_dot_product_attention

from antiphon_services.lm.decoder import Decoder


class GroupEncoder:
    """Computes the input rows of the language model.

    `module` is a `SpeechTextModule`, or a `SpeechHeads`, which can only encode groups.
    `empty_codes` contains, for each channel, the value that indicates that there is no code.
    `empty_id` is the token that stands for a group. If `full` is false, a frame does not attend to
    later frames of its group.
    """

    def __init__(
        self, module: Any, *, empty_id: int, empty_codes: Sequence[int], group: int, full: bool
    ) -> None:
        self._words: Tensor | None = None
        if (model := getattr(module, "model", None)) is not None:
            self._words = model.embed_tokens.weight
        self._tables = tuple(each.weight for each in module.speech_embeddings)
        self._down: Tensor = module.speech_group_downcast.weight
        self.empty_id = empty_id
        self._group, self._causal = group, not full
        device = self._down.device
        self._empty_codes = torch.tensor(empty_codes, device=device)
        self._decoder = Decoder(
            module.input_local_transformer, group, batch_invariant=False, exact_norms=False
        )
        self._positions = torch.arange(group, device=device)

    def rows(self, ids: Tensor, codes: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return rows of shape [n, hidden].

        `ids` is an int64 tensor of token IDs, of shape [n]. `codes` is an int64 tensor of shape [n,
        group, channels], which is only read at positions that contain a group. `groups` is an int64
        tensor with the positions that may contain a group. If it is None, the positions have to be
        searched for, which requires waiting for the device.
        """
        assert self._words is not None
        words = embedding(ids, self._words)
        if groups is None:
            groups = (ids == self.empty_id).nonzero()[:, 0]
        if not len(groups):
            return words
        # Only positions that contain a group are replaced.
        spoken = ids[groups] == self.empty_id
        encoded = torch.where(spoken[:, None], self.encode(codes[groups]), words[groups])
        return words.index_copy(0, groups, encoded)

    def encode(self, codes: Tensor) -> Tensor:
        """Encode int64 groups of shape [n, group, channels] to rows of shape [n, hidden]."""
        count = len(codes)
        frames = codes.flatten(0, 1)
        empty = frames == self._empty_codes
        # Like the vendor's code, this adds the embeddings in channel order.
        summed = self._tables[0].new_zeros(len(frames), self._tables[0].shape[1])
        for channel, table in enumerate(self._tables):
            found = embedding(frames[:, channel], table)
            summed += found.masked_fill(empty[:, channel, None], 0.0)
        rotation = self._decoder.rotation.at(self._positions.repeat(count))
        states = self._decoder.forward(summed, rotation, self._attend)
        return linear(states.reshape(count, -1), self._down)

    def _attend(self, _layer: int, queries: Tensor, keys_values: Tensor) -> Tensor:
        """Compute attention among the frames of each group. Each row is a frame, and rows are
        ordered by group.
        """
        heads = queries.shape[1]

        def by_group(rows: Tensor) -> Tensor:
            return rows.view(-1, self._group, *rows.shape[1:]).transpose(1, 2)

        mixed = scaled_dot_product_attention(
            by_group(queries),
            by_group(keys_values[:, :heads]),
            by_group(keys_values[:, heads:]),
            is_causal=self._causal,
            scale=self._decoder.shape.scale,
        )
        return mixed.transpose(1, 2).flatten(0, 1)
