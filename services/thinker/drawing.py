"""Chooses the next id of every segment of a batch, and says how likely the ids were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.sampler import SamplingRows, choose, choose_each, uniform_each
from antiphon.sampling import Sampling

Score = tuple[list[int], list[float]]
"""Ids and their log probabilities."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Choice number `step` of a segment; `history` is what a repetition penalty applies to."""

    logits: Tensor
    sampling: Sampling
    step: int
    history: Tensor | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """An id that was chosen from `logits` [V], and how many of the likeliest are asked for."""

    logits: Tensor
    id_: int
    top: int


def draw_together(draws: Sequence[Draw]) -> list[int | None]:
    """The ids of all draws that have no history; None for others and for undecided ones.

    One question to the device, however many there are. `draw_alone` is for the rest.
    """
    plain = [index for index, each in enumerate(draws) if each.history is None]
    ids: list[int | None] = [None] * len(draws)
    if plain:
        chosen, scores = _choose_each([draws[index] for index in plain])
        known = torch.where(scores.isfinite(), chosen, -1).tolist()
        for index, id_ in zip(plain, known, strict=True):
            ids[index] = id_ if id_ >= 0 else None
    return ids


def draw_alone(draw: Draw) -> int:
    """One id. Raises `Internal` when the logits leave nothing to choose from."""
    return choose(draw.logits, draw.sampling, step=draw.step, history=draw.history)


def score_together(drawn: Sequence[Drawn]) -> list[Score]:
    """Each id and the likeliest, 1 + `top` of them, with the model's own log probabilities.

    Those are the log-softmax of the logits in float32, as `transformers` and vLLM have it.
    """
    logits = torch.stack([each.logits for each in drawn])
    logprobs = logits.log_softmax(-1, dtype=torch.float32)
    chosen = torch.tensor([each.id_ for each in drawn], device=logits.device)[:, None]
    likeliest = logprobs.topk(min(max(each.top for each in drawn), logits.shape[-1]))
    ids = torch.cat([chosen, likeliest.indices], dim=1).tolist()
    values = torch.cat([logprobs.gather(1, chosen), likeliest.values], dim=1).tolist()
    widths = [1 + each.top for each in drawn]
    return [
        (row[:width], value[:width]) for row, value, width in zip(ids, values, widths, strict=True)
    ]


def _choose_each(draws: Sequence[Draw]) -> tuple[Tensor, Tensor]:
    """Ids [n], and their rows' highest scores: not finite where none could be chosen."""
    logits = torch.stack([each.logits for each in draws])
    samplings = [each.sampling for each in draws]
    numbers = uniform_each([each.seed for each in samplings], [each.step for each in draws], 1)
    return choose_each(
        logits,
        SamplingRows.of(samplings, logits.device),
        torch.from_numpy(numbers).to(logits.device),
    )
