"""Chooses the next ID for each segment in a batch and computes log probabilities."""

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
"""IDs and their log probabilities."""


@dataclass(frozen=True, slots=True)
class PenaltyWindow:
    """A repetition penalty for the last `size` IDs, in addition to the penalty for all IDs."""

    size: int
    penalty: float

    def of(self, ids: Sequence[int]) -> PenalisedIds:
        """Return the IDs to which this penalty applies."""
        return PenalisedIds(ids, self.penalty)


@dataclass(frozen=True, slots=True)
class PenalisedIds:
    """One or more IDs in the vocabulary and the penalty for each of them."""

    ids: Sequence[int]
    penalty: float


@dataclass(frozen=True, slots=True)
class LogitsRow:
    """The logits [V] for choice number `step` of a segment.

    The repetition penalty applies to the IDs that are marked in `seen` (bool [V]), or `seen` is
    None if there is no penalty. The `latest` IDs may have their own penalty.
    """

    logits: Tensor
    sampling: Sampling
    step: int
    seen: Tensor | None
    latest: PenalisedIds | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """An ID that was chosen from `logits` [V], and the number of most likely IDs that the client
    requested.
    """

    logits: Tensor
    id_: int
    top: int


def sample_together(rows: Sequence[LogitsRow]) -> list[int | None]:
    """Return an ID for each row. If it is None, the row is undecided and must be passed to
    `sample_alone`.

    This reads from the device only once, no matter how many rows there are.
    """
    if not rows:
        return []
    chosen, scores = _choose_each(rows)
    known = torch.where(scores.isfinite(), chosen, -1).tolist()
    return [id_ if id_ >= 0 else None for id_ in known]


def sample_alone(row: LogitsRow) -> int:
    """Return the ID for a single row. Raises `Internal` if the logits leave no ID to choose
    from.
    """
    history = None if row.seen is None else row.seen.nonzero()[:, 0]
    (logits,) = _lower_latest(row.logits[None], [row])
    return choose(logits, row.sampling, step=row.step, history=history)


def score_together(sampled: Sequence[Sampled]) -> list[Score]:
    """Return each chosen ID, followed by the `top` most likely IDs, together with their log
    probabilities according to the model.

    The log probabilities are the log-softmax of the logits in float32, as in `transformers` and
    vLLM.
    """
    logits = torch.stack([each.logits for each in sampled])
    logprobs = logits.log_softmax(-1, dtype=torch.float32)
    chosen = on_device([each.id_ for each in sampled], logits.device)[:, None]
    likeliest = logprobs.topk(min(max(each.top for each in sampled), logits.shape[-1]))
    ids = torch.cat([chosen, likeliest.indices], dim=1)
    values = torch.cat([logprobs.gather(1, chosen), likeliest.values], dim=1)
    # float64 represents both values exactly, so a single read from the device is sufficient.
    told = torch.stack((ids.to(torch.float64), values.to(torch.float64)), dim=1).tolist()
    widths = [1 + each.top for each in sampled]
    return [
        ([int(id_) for id_ in ids[:width]], values[:width])
        for (ids, values), width in zip(told, widths, strict=True)
    ]


def _choose_each(rows: Sequence[LogitsRow]) -> tuple[Tensor, Tensor]:
    """Return the IDs [n] and each row's highest score. The score is not finite if no ID can be
    chosen.
    """
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
    """Return logits [n, V] with the penalties for each row's latest IDs applied."""
    given = [each.latest for each in rows]
    size = max((len(each.ids) for each in given if each is not None), default=0)
    if not size:
        return logits
    # If an ID is repeated, all of its values are equal. IDs without a penalty keep their own value.
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
    """Return `seen` for all rows as bool [n, V], or None if it isn't set for any row."""
    given = [each.seen for each in rows if each.seen is not None]
    if not given:
        return None
    nothing = torch.zeros_like(given[0])
    return torch.stack([nothing if each.seen is None else each.seen for each in rows])
