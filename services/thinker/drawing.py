"""Chooses the next id of every segment of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.sampler import SamplingRows, choose, choose_each, uniform_each
from antiphon.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Draw:
    """Choice number `step` of a segment; `history` is what a repetition penalty applies to."""

    logits: Tensor
    sampling: Sampling
    step: int
    history: Tensor | None


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
