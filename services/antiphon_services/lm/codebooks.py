"""The code predictor, which draws the residual codes of each frame.

This mirrors the way in which Qwen's speech models call `generate` on their code predictor. A
sequence starts with the model's last hidden state (after its final norm) and the embedding of the
first code. Each drawn code then adds one position. Every group has its own head and its own
embedding table. The tables have the model's width, so if the predictor is narrower, a linear layer
projects their rows to the predictor's width.

All sessions of a step run in lockstep: their sequences always have the same length and end together
with the frame, as described in `antiphon_services.lm.lockstep`. The IDs stay on the device until
the frame is complete. Between the first and the last code of a frame, nothing depends on a value
that has to be read from the device. This makes it possible to capture these operations as one CUDA
graph for each number of rows (`antiphon_services.lm.graphs`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import embedding as look_up

from antiphon.values.sampling import Sampling
from antiphon_services.lm.experts import LEAST_ROWS
from antiphon_services.lm.fused_lockstep import FusedLockstep
from antiphon_services.lm.graphs import Bucketing, RowFunction
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.lockstep import Lockstep
from antiphon_services.lm.products import Product
from antiphon_services.lm.sampler import SamplingRows, choose_each


def predictor_sampling(first: Sampling, own: Sampling) -> Sampling:
    """Return the code predictor's sampling settings.

    They are the same as `own`, except that they use the seed of the first codes. They are greedy if
    the first codes are.
    """
    return replace(
        first,
        temperature=0.0 if first.greedy else own.temperature,
        top_k=own.top_k,
        top_p=own.top_p,
        repetition_penalty=1.0,
    )


class CodePredictor:
    """Draws the codes of groups 1 to G-1, for up to `sessions` frames at a time.

    `module` is Hugging Face's code predictor for conditional generation. `sampling` is used for all
    frames whose first code isn't greedy. If `bucketing` is given, frames are drawn in buckets of at
    least `LEAST_ROWS` rows. If `kernels` is given, operations are fused.
    """

    def __init__(
        self,
        module: Any,
        sessions: int,
        sampling: Sampling,
        bucketing: Bucketing | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self._tables: tuple[Tensor, ...] = tuple(
            table.weight for table in module.model.codec_embedding
        )
        self.groups = len(self._tables) + 1
        self._lockstep = (
            FusedLockstep(module.model, sessions, self.groups, kernels)
            if kernels
            else Lockstep(module.model, sessions, self.groups)
        )
        self._choose = kernels.choose if kernels else choose_each
        scale = self._lockstep.output_scale
        self._heads = tuple(Product.of(head, scale=scale) for head in module.lm_head)
        project = getattr(module, "small_to_mtp_projection", None)
        self._project = Product.of(project) if isinstance(project, Linear) else None
        self._settings = SamplingRows.of([sampling] * sessions, self._lockstep.device)
        self._in_buckets = self._bucketed(sessions, bucketing) if bucketing else None

    def frames(
        self,
        hidden: Tensor,
        first: Tensor,
        embedding: Tensor,
        settings: SamplingRows,
        numbers: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the codes (int64 [n, G]), the sums of their embeddings [n, hidden], and `decided`
        [n].

        `hidden` [n, hidden] contains the model's last states. `first` (int64 [n]) contains the
        first codes, and `embedding` contains their embeddings. `settings` are the sampling settings
        of the first codes. They are only used to determine which frames are greedy. `numbers`
        (float64 [n, G]) contains the random numbers; the first number of each row is ignored.
        `decided` is False for a frame if its logits didn't leave any ID to choose from. The results
        are valid until the next call.
        """
        if self._in_buckets is not None:
            given = hidden, first, embedding, settings.greedy, numbers
            codes, rows, decided = self._in_buckets(*given)
            return codes, rows, decided
        own = self._settings.with_greedy(
            settings.greedy, any_greedy=settings.any_greedy, all_greedy=settings.all_greedy
        )
        codes, rows, decided = self._draw(hidden, first, embedding, own, numbers)
        # On a CPU, reading values doesn't cause a wait. Values that are not finite propagate to all
        # later positions, so if every frame was decided, the whole memory is finite.
        if self._lockstep.reads_ahead and bool(decided.all()):
            self._lockstep.found_finite()
        return codes, rows, decided

    def embedded(self, codes: Tensor, embedding: Tensor) -> Tensor:
        """Return the sum of all code embeddings for each frame, like `frames` does.

        `codes` are frames (int64 [n, G]), and `embedding` [n, hidden] contains the embeddings of
        their first codes.
        """
        later = [look_up(codes[:, g], table) for g, table in enumerate(self._tables, 1)]
        return torch.stack([embedding, *later], 1).sum(1)

    def _bucketed(self, sessions: int, bucketing: Bucketing) -> RowFunction:
        """Return a version of `frames` that runs in buckets and supports any mix of greedy and
        sampled rows.
        """
        shape, width = self._lockstep, self._tables[0].shape[1]
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
        states = self._lockstep.begin(self._entering(hidden), self._entering(embedding))
        columns = numbers[:, :, None].unbind(1)
        for group in range(1, self.groups):
            logits = self._heads[group - 1](states)
            drawn, likeliest = self._choose(logits, settings, columns[group])
            taken = look_up(drawn, self._tables[group - 1])
            codes.append(drawn)
            rows.append(taken)
            best.append(likeliest)
            if group + 1 < self.groups:
                states = self._lockstep.go_on(group + 1, self._entering(taken))
        decided = torch.stack(best, 1).isfinite().all(1)
        return torch.stack(codes, 1), torch.stack(rows, 1).sum(1), decided

    def _entering(self, rows: Tensor) -> Tensor:
        """Project rows from the model's width to the predictor's width."""
        return rows if self._project is None else self._project(rows)
