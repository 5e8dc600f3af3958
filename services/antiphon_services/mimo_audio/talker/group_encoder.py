"""Compute the language model's input rows from text ids and groups of frames of codes.

A position is one text id, or the id `<|empty|>` with a group of frames. The frames of a group
attend to each other, and to no other group. The vendor's code expresses this by `is_causal=False`,
which only one of transformers' attention kernels reads. Here attention is computed without a mask.

The vendor's code adds the embeddings of a frame's codes in bfloat16 for any weights. Here they are
added in the dtype of the weights, which is equal for bfloat16 weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, scaled_dot_product_attention

from antiphon_services.lm.decoder import Decoder


class GroupEncoder:
    """Input rows of the language model.

    `module` is a `SpeechTextModule`, or `SpeechHeads`, with which only groups are encoded.
    `empty_codes` has the id of each channel that stands for no code, and `empty_id` is the text id
    of a group. Unless `full`, a frame does not see later frames of its group.
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
        """Return rows, [n, hidden], of text ids int64 [n] and codes int64 [n, group, channels].

        `groups` int64 [m] are positions that may have the id `empty_id`. None means that they are
        searched, which waits for the device. Codes at other positions are not read.
        """
        assert self._words is not None
        words = embedding(ids, self._words)
        if groups is None:
            groups = (ids == self.empty_id).nonzero()[:, 0]
        if not len(groups):
            return words
        # A group's position has no text.
        spoken = ids[groups] == self.empty_id
        encoded = torch.where(spoken[:, None], self.encode(codes[groups]), words[groups])
        return words.index_copy(0, groups, encoded)

    def encode(self, codes: Tensor) -> Tensor:
        """The rows [n, hidden] of groups int64 [n, group, channels]."""
        count = len(codes)
        frames = codes.flatten(0, 1)
        empty = frames == self._empty_codes
        # In the order of channels, as the vendor's code adds them.
        summed = self._tables[0].new_zeros(len(frames), self._tables[0].shape[1])
        for channel, table in enumerate(self._tables):
            found = embedding(frames[:, channel], table)
            summed += found.masked_fill(empty[:, channel, None], 0.0)
        rotation = self._decoder.rotation.at(self._positions.repeat(count))
        states = self._decoder.forward(summed, rotation, self._attend)
        return linear(states.reshape(count, -1), self._down)

    def _attend(self, _layer: int, queries: Tensor, keys_values: Tensor) -> Tensor:
        """Attention among the frames of each group; rows are frames, group by group."""
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
