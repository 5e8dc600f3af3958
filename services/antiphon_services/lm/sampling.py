"""Chooses the next id of every segment of a batch, and computes log probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from antiphon.transport.device_edge import on_device
from antiphon.values.sampling import Sampling
from antiphon_services.lm.sampler import SamplingRows, choose, choose_each, draw_numbers

Score = tuple[list[int], list[float]]
"""Ids and their log probabilities."""


@dataclass(frozen=True, slots=True)
class PenaltyWindow:
    """A repetition penalty for the last `size` ids, besides that for all."""

    size: int
    penalty: float

    def of(self, ids: Sequence[int]) -> PenalisedIds:
        """Return the ids with the penalty."""
        return PenalisedIds(ids, self.penalty)


@dataclass(frozen=True, slots=True)
class PenalisedIds:
    """Ids of the vocabulary, at least one, and the penalty of each of them."""

    ids: Sequence[int]
    penalty: float


@dataclass(frozen=True, slots=True)
class LogitsRow:
    """Logits [V] for choice number `step` of a segment.

    The repetition penalty applies to ids in `seen` bool [V]; None if there is none. The `latest`
    ids may have another one.
    """

    logits: Tensor
    sampling: Sampling
    step: int
    seen: Tensor | None
    latest: PenalisedIds | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """An id chosen from `logits` [V], and how many of the most likely ids are requested."""

    logits: Tensor
    id_: int
    top: int


def sample_together(rows: Sequence[LogitsRow]) -> list[int | None]:
    """Return the ids of all rows; None for undecided ones, to be passed to `sample_alone`.

    Reads from the device once, for any number of rows.
    """
    if not rows:
        return []
    chosen, scores = _choose_each(rows)
    known = torch.where(scores.isfinite(), chosen, -1).tolist()
    return [id_ if id_ >= 0 else None for id_ in known]


def sample_alone(row: LogitsRow) -> int:
    """Return one id. Raises `Internal` if the logits leave nothing to choose from."""
    history = None if row.seen is None else row.seen.nonzero()[:, 0]
    (logits,) = _lower_latest(row.logits[None], [row])
    return choose(logits, row.sampling, step=row.step, history=history)


def score_together(sampled: Sequence[Sampled]) -> list[Score]:
    """Return each id and the 1 + `top` most likely ones, with the model's log probabilities.

    These are the log-softmax of the logits in float32, as in `transformers` and vLLM.
    """
    logits = torch.stack([each.logits for each in sampled])
    logprobs = logits.log_softmax(-1, dtype=torch.float32)
    chosen = on_device([each.id_ for each in sampled], logits.device)[:, None]
    likeliest = logprobs.topk(min(max(each.top for each in sampled), logits.shape[-1]))
    ids = torch.cat([chosen, likeliest.indices], dim=1)
    values = torch.cat([logprobs.gather(1, chosen), likeliest.values], dim=1)
    # One read from the device; both are exact in float64.
    told = torch.stack((ids.to(torch.float64), values.to(torch.float64)), dim=1).tolist()
    widths = [1 + each.top for each in sampled]
    return [
        ([int(id_) for id_ in ids[:width]], values[:width])
        for (ids, values), width in zip(told, widths, strict=True)
    ]


def _choose_each(rows: Sequence[LogitsRow]) -> tuple[Tensor, Tensor]:
    """Return ids [n] and their rows' highest scores, not finite where none can be chosen."""
    logits = _lower_latest(torch.stack([each.logits for each in rows]), rows)
    samplings = [each.sampling for each in rows]
    numbers = draw_numbers(samplings, [each.step for each in rows], 1)
    return choose_each(
        logits,
        SamplingRows.of(samplings, logits.device),
        on_device(numbers, logits.device),
        seen=_seen_each(rows),
    )


def _lower_latest(logits: Tensor, rows: Sequence[LogitsRow]) -> Tensor:
    """Return logits [n, V] with the penalties of the rows' latest ids."""
    given = [each.latest for each in rows]
    size = max((len(each.ids) for each in given if each is not None), default=0)
    if not size:
        return logits
    # Repeated ids get equal values. Without a penalty an id keeps its own.
    ids = [
        [0] * size if each is None else [*each.ids, *[each.ids[0]] * size][:size] for each in given
    ]
    penalties = [[1.0 if each is None else each.penalty] for each in given]
    there = on_device(np.array(ids, np.int64), logits.device)
    penalty = on_device(np.array(penalties, np.float32), logits.device)
    scores = logits.to(torch.float32)
    found = scores.gather(1, there)
    return scores.scatter(1, there, torch.where(found < 0, found * penalty, found / penalty))


def _seen_each(rows: Sequence[LogitsRow]) -> Tensor | None:
    """Return `seen` of all rows, bool [n, V]; None if no row has it."""
    given = [each.seen for each in rows if each.seen is not None]
    if not given:
        return None
    nothing = torch.zeros_like(given[0])
    return torch.stack([nothing if each.seen is None else each.seen for each in rows])
