"""Determines which positions of a masked answer a step may fix, and how many.

All positions of an answer are masked at first. A step draws an ID for each masked position in its
range and fixes the IDs that have the highest confidence. All other positions remain masked. The
plan depends only on the length and the settings, so the number of steps is known before the first
one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from antiphon.errors import InvalidArgument

QUARTER_TURN = np.float32(math.pi / 2)


@dataclass(frozen=True, slots=True)
class UnmaskingStep:
    """A step that draws the masked positions from `start` to `stop` of the answer and fixes `fixed`
    of them. `fixed` is at least 1.

    `noise` is the factor of the Gumbel noise that is added to the logarithms of the probabilities
    when the positions are ordered.
    """

    start: int
    stop: int
    fixed: int
    noise: float = 0.0


def block_steps(count: int, block: int, steps: int) -> tuple[UnmaskingStep, ...]:
    """Plan `count` positions in blocks of `block` positions, from left to right (the
    semi-autoregressive sampling of LLaDA, arXiv:2502.09992).

    Each block gets an equal part of `steps`, rounded down, but at least one step. A block fixes the
    same number of positions in each of its steps. If this is not possible, the first steps fix one
    more position. Steps that would fix no position are left out. Positions before the range of a
    step never change again. Raises `InvalidArgument` if a number is less than 1.
    """
    for name, number in (("count", count), ("block", block), ("steps", steps)):
        _check_positive(name, number)
    per_block = max(1, steps // math.ceil(count / block))
    planned = []
    for start in range(0, count, block):
        stop = min(start + block, count)
        least, more = divmod(stop - start, per_block)
        fixed = [least + (at < more) for at in range(per_block)]
        planned += [UnmaskingStep(start, stop, each) for each in fixed if each]
    return tuple(planned)


def cosine_steps(count: int, steps: int, temperature: float) -> tuple[UnmaskingStep, ...]:
    """Plan `count` positions at once with the cosine schedule (MaskGIT, arXiv:2202.04200).

    After a fraction t of the steps, cos(t * pi / 2) of the positions are masked. Their number is
    rounded down in float32, but it decreases by at least one in each step, and at least one
    position remains masked until the last step, which fixes all positions. The noise of a step is
    the noise of the previous step multiplied by 1 - t. It starts with `temperature`. If `count` is
    small, fewer than `steps` steps may be needed. Raises `InvalidArgument` if `count` or `steps` is
    less than 1 or if the temperature is negative.
    """
    _check_positive("count", count)
    _check_positive("steps", steps)
    if not (math.isfinite(temperature) and temperature >= 0):
        raise InvalidArgument("temperature: must be at least 0", field="temperature")
    planned = []
    masked, noise = count, temperature
    for step in range(1, steps):
        fraction = step / steps
        noise *= 1 - fraction
        share = np.cos(np.float32(fraction) * QUARTER_TURN)
        kept = max(1, min(masked - 1, math.floor(np.float32(count) * share)))
        if kept < masked:
            planned.append(UnmaskingStep(0, count, masked - kept, noise))
        masked = kept
    return (*planned, UnmaskingStep(0, count, masked))


def _check_positive(name: str, number: int) -> None:
    if number < 1:
        raise InvalidArgument(f"{name}: must be at least 1", field=name)
