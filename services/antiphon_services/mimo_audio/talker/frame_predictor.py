"""Samples the codes of a group of frames from the last hidden state of the language model.

The codes of channel c are delayed by `delays[c]` steps, so step t samples channel c of frame t -
delays[c]. The number of steps for a group is therefore the number of its frames plus the longest
delay. The input of the first step is the projected hidden state. The input of every other step is
the sum of the embeddings of the codes from the previous step. Groups only depend on each other
through the state of the language model.

All sessions run in lockstep, as described in `antiphon_services.lm.lockstep`. Between the first and
the last code of a group, no operation requires the host to read a value. For each number of rows, a
group can therefore be captured as a single CUDA graph, as described in
`antiphon_services.lm.graphs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from antiphon.values.sampling import Sampling
from antiphon_services.lm.experts import LEAST_ROWS
from antiphon_services.lm.graphs import Bucketing, RowFunction
from antiphon_services.lm.lockstep import Lockstep
from antiphon_services.lm.products import Product
from antiphon_services.lm.sampler import SamplingRows, choose_each

ANY = Sampling(temperature=0.5, top_k=0, top_p=0.5, repetition_penalty=1.0, seed=0, max_tokens=1)
"""The sampling settings that graphs are captured with. They must include every operation that a row
may require.
"""


class DelayedFramePredictor:
    """Predicts `group` frames at a time for up to `sessions` sessions.

    `module` is a `SpeechHeads`. Channel c never draws `empty_codes[c]`. If `bucketing` is set, it
    is used to draw groups, with at least `LEAST_ROWS` rows at a time.
    """

    def __init__(
        self,
        module: Any,
        sessions: int,
        *,
        group: int,
        delays: Sequence[int],
        empty_codes: Sequence[int],
        bucketing: Bucketing | None = None,
    ) -> None:
        self._enter = Product.of(module.hidden_states_downcast)
        self._tables: tuple[Tensor, ...] = tuple(each.weight for each in module.speech_embeddings)
        project = getattr(module, "speech_embeddings_to_local", None)
        self._project = None if project is None else Product.of(project)
        self.group, self._delays = group, tuple(delays)
        self.steps = group + max(delays)
        sessions = max(sessions, LEAST_ROWS)
        self._lockstep = Lockstep(module.local_transformer, sessions, self.steps, begin_with=1)
        heads = module.local_transformer_lm_heads
        scale = self._lockstep.output_scale
        self._heads = tuple(Product.of(head, scale=scale) for head in heads)
        self._suppressed = tuple(
            torch.arange(head.out_features, device=self._lockstep.device) == empty
            for head, empty in zip(heads, empty_codes, strict=True)
        )
        width = module.hidden_states_downcast.in_features
        self._in_buckets = self._bucketed(sessions, width, bucketing) if bucketing else None

    @property
    def channels(self) -> int:
        """The number of codes in a frame."""
        return len(self._heads)

    def draw(
        self, states: Tensor, settings: SamplingRows, numbers: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draw int64 codes of shape [n, group, channels], and a boolean tensor of shape [n].

        `states`, of shape [n, hidden], are the states of the language model after its final
        normalization. The `top_k` and repetition penalty of `settings` are not used. `numbers` is a
        float64 tensor of shape [n, group, channels] with values in [0, 1). The boolean tensor is
        False for rows whose logits did not contain a finite candidate. Both results are only valid
        until the next draw.
        """
        if self._in_buckets is not None:
            columns = settings.temperature, settings.tail, settings.greedy
            codes, decided = self._in_buckets(states, *columns, numbers)
            return codes, decided
        codes, decided = self._draw(states, settings, numbers)
        # On a CPU, reading this value costs nothing. A non-finite value would spread to all later
        # positions.
        if self._lockstep.reads_ahead and bool(decided.all()):
            self._lockstep.found_finite()
        return codes, decided

    def _bucketed(self, sessions: int, width: int, bucketing: Bucketing) -> RowFunction:
        """Return a version of `draw` that uses bucketing and supports all settings."""
        lockstep = self._lockstep
        rows = SamplingRows.of([ANY, replace(ANY, temperature=0.0)] * sessions, lockstep.device)
        buffers = (
            torch.zeros(sessions, width, dtype=lockstep.dtype, device=lockstep.device),
            rows.temperature[:sessions].clone(),
            rows.tail[:sessions].clone(),
            rows.greedy[:sessions].clone(),
            torch.zeros(
                sessions, self.group, self.channels, dtype=torch.float64, device=lockstep.device
            ),
        )

        def draw(
            states: Tensor, temperature: Tensor, tail: Tensor, greedy: Tensor, numbers: Tensor
        ) -> tuple[Tensor, Tensor]:
            settings = replace(rows.with_greedy(greedy), temperature=temperature, tail=tail)
            return self._draw(states, settings, numbers)

        return bucketing(draw, buffers, LEAST_ROWS)

    def _draw(
        self, states: Tensor, settings: SamplingRows, numbers: Tensor
    ) -> tuple[Tensor, Tensor]:
        drawn: list[list[Tensor]] = [[] for _ in self._delays]
        best = []
        out = self._lockstep.begin_one(self._enter(states))
        for step in range(self.steps):
            entering: Tensor | None = None
            for channel, delay in enumerate(self._delays):
                frame = step - delay
                if not 0 <= frame < self.group:
                    continue
                ids, likeliest = choose_each(
                    self._heads[channel](out),
                    settings,
                    numbers[:, frame, channel, None],
                    suppressed=self._suppressed[channel],
                )
                drawn[channel].append(ids)
                best.append(likeliest)
                row = embedding(ids, self._tables[channel])
                if self._project is not None:
                    row = self._project(row)
                entering = row if entering is None else entering + row
            if step + 1 < self.steps:
                assert entering is not None
                out = self._lockstep.go_on(step + 1, entering)
        codes = torch.stack([torch.stack(each, 1) for each in drawn], 2)
        return codes, torch.stack(best, 1).isfinite().all(1)
