"""The residual codes of frames: the code predictor and its tables.

Mirrors how Qwen's models of speech use their code predictor's `generate`: a sequence starts with
the model's last hidden state (after its final norm) and the embedding of the first code, then
one position per drawn code; each group has its own head and its own table. Tables are as wide as
the model, and where the predictor is narrower a linear layer leads to it.

All sessions of a step go through in lockstep: their sequences have the same length at
every moment and end with the frame. So keys and values live in one buffer that is
allocated once, attention has no mask, and ids stay on the device until the end. Nothing
between a frame's first code and its last depends on a value that is on the device, so
that it can be one graph for each number of rows: see `services.lm.graphs`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Identity
from torch.nn.functional import linear, scaled_dot_product_attention

from antiphon.sampling import Sampling
from services.lm.decoder import Decoder
from services.lm.experts import LEAST_ROWS
from services.lm.graphs import Bucketing, RowFunction
from services.lm.kv_cache import CacheShape
from services.lm.rotary import Rotation
from services.lm.sampler import SamplingRows, choose_each


def predictor_sampling(first: Sampling, own: Sampling) -> Sampling:
    """The code predictor's settings: `own`, but greedy when the first codes are, and their seed."""
    return replace(
        first,
        temperature=0.0 if first.greedy else own.temperature,
        top_k=own.top_k,
        top_p=own.top_p,
        repetition_penalty=1.0,
    )


class CodePredictor:
    """Draws groups 1..G-1 of at most `sessions` frames at a time.

    `module` is HF's code predictor for conditional generation, `sampling` its own settings
    where first codes are not greedy. With `bucketing`, frames are drawn by it, at least
    `LEAST_ROWS` rows at a time.
    """

    def __init__(
        self, module: Any, sessions: int, sampling: Sampling, bucketing: Bucketing | None = None
    ) -> None:
        self._heads: tuple[Tensor, ...] = tuple(head.weight for head in module.lm_head)
        self._tables: tuple[Tensor, ...] = tuple(
            table.weight for table in module.model.codec_embedding
        )
        self.groups = len(self._heads) + 1
        self._decoder = Decoder(module.model, self.groups, batch_invariant=True, exact_norms=False)
        rotation = self._decoder.rotation
        self._rotations = [
            Rotation(rotation.cosines[at, None], rotation.sines[at, None])
            for at in range(self.groups)
        ]
        self._lockstep = _Lockstep(self._decoder.shape, sessions, self.groups)
        self._project = getattr(module, "small_to_mtp_projection", Identity())
        self._settings = SamplingRows.of([sampling] * sessions, self._decoder.shape.device)
        self._in_buckets = self._bucketed(sessions, bucketing) if bucketing else None

    def frames(
        self,
        hidden: Tensor,
        first: Tensor,
        embedding: Tensor,
        settings: SamplingRows,
        numbers: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Codes int64 [n, G], the sums of their embeddings [n, hidden], and decided [n].

        `hidden` [n, hidden] are the model's last states, `first` int64 [n] the first
        codes and `embedding` their rows. Of `settings`, those of the first codes, it counts who is
        greedy. `numbers` float64 [n, G] are the draws' (the first is not used). `decided`
        is False where logits left nothing to choose from. All are good until the next
        frames.
        """
        if self._in_buckets is None:
            own = self._settings.with_greedy(
                settings.greedy, any_greedy=settings.any_greedy, all_greedy=settings.all_greedy
            )
            return self._draw(hidden, first, embedding, own, numbers)
        codes, rows, decided = self._in_buckets(hidden, first, embedding, settings.greedy, numbers)
        return codes, rows, decided

    def _bucketed(self, sessions: int, bucketing: Bucketing) -> RowFunction:
        """`frames` by bucket, whoever is greedy."""
        shape, width = self._decoder.shape, self._tables[0].shape[1]
        buffers = (
            torch.zeros(sessions, width, dtype=shape.dtype, device=shape.device),
            torch.zeros(sessions, dtype=torch.int64, device=shape.device),
            torch.zeros(sessions, width, dtype=shape.dtype, device=shape.device),
            torch.zeros(sessions, 1, dtype=torch.bool, device=shape.device),
            torch.zeros(sessions, self.groups, dtype=torch.float64, device=shape.device),
        )

        def draw(
            hidden: Tensor, first: Tensor, embedding: Tensor, greedy: Tensor, numbers: Tensor
        ) -> tuple[Tensor, Tensor, Tensor]:
            return self._draw(hidden, first, embedding, self._settings.with_greedy(greedy), numbers)

        return bucketing(draw, buffers, LEAST_ROWS)

    def _draw(
        self,
        hidden: Tensor,
        first: Tensor,
        embedding: Tensor,
        settings: SamplingRows,
        numbers: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        codes, rows, best = [first], [embedding], []
        states = self._begin(hidden, embedding)
        for group in range(1, self.groups):
            logits = linear(states, self._heads[group - 1])
            drawn, likeliest = choose_each(logits, settings, numbers[:, group, None])
            taken = self._tables[group - 1][drawn]
            codes.append(drawn)
            rows.append(taken)
            best.append(likeliest)
            if group + 1 < self.groups:
                attend = partial(self._lockstep.go_on, group + 1)
                states = self._decoder.forward(
                    self._project(taken), self._rotations[group + 1], attend
                )
        decided = torch.stack(best, 1).isfinite().all(1)
        return torch.stack(codes, 1), torch.stack(rows, 1).sum(1), decided

    def _begin(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        """States of the second of the two positions that every sequence begins with."""
        count = hidden.shape[0]
        rotation = self._decoder.rotation
        cosines, sines = (
            each[:2, None].expand(-1, count, -1, -1).flatten(0, 1)
            for each in (rotation.cosines, rotation.sines)
        )
        rows = self._project(torch.cat((hidden, embedding)))
        return self._decoder.forward(rows, Rotation(cosines, sines), self._lockstep.begin)[count:]


class _Lockstep:
    """Keys and values of sequences that have the same length: the code predictor's."""

    def __init__(self, shape: CacheShape, sessions: int, positions: int) -> None:
        # By layer, session and position: the heads of keys, then those of values.
        size = (shape.layers, sessions, positions, 2 * shape.key_heads, shape.head_dim)
        self._memory = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        self._shape = shape

    def begin(self, layer: int, queries: Tensor, memory: Tensor) -> Tensor:
        """Of positions 0 of all sessions, then positions 1; see `services.lm.layer.Attend`."""
        count, key_heads = queries.shape[0] // 2, self._shape.key_heads
        self._memory[layer, :count, 0] = memory[:count]
        # Position 0 sees itself alone.
        sharing = queries.shape[1] // key_heads
        first = memory[:count, key_heads:, None].expand(-1, -1, sharing, -1).flatten(1, 2)
        return torch.cat((first, self.go_on(1, layer, queries[count:], memory[count:])))

    def go_on(self, position: int, layer: int, queries: Tensor, memory: Tensor) -> Tensor:
        """Of one position of all sessions, which sees all before it."""
        count, key_heads = queries.shape[0], self._shape.key_heads
        self._memory[layer, :count, position] = memory
        seen = self._memory[layer, :count, : position + 1].transpose(1, 2)
        mixed = scaled_dot_product_attention(
            queries.view(count, key_heads, -1, self._shape.head_dim),
            seen[:, :key_heads],
            seen[:, key_heads:],
            scale=self._shape.scale,
        )
        return mixed.flatten(1, 2)
