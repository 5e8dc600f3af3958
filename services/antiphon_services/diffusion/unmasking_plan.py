"""Determines which positions of a masked answer can be fixed in a step and how many of them are
fixed.

At the beginning, all positions of an answer are masked. A step draws an ID for each masked position
in its range and fixes the IDs with the highest confidence. The other positions remain masked. The
plan depends only on the length and the settings, so the number of steps is known in advance.
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

    When the positions are ranked, Gumbel noise is added to the logarithms of their probabilities.
    `noise` is the factor for this noise.
    """

    start: int
    stop: int
    fixed: int
    noise: float = 0.0


def block_steps(count: int, block: int, steps: int) -> tuple[UnmaskingStep, ...]:
    """Plan `count` positions in blocks of `block` positions, from left to right (LLaDA's
    semi-autoregressive sampling, arXiv:2502.09992).

    Each block gets an equal part of `steps`, rounded down, but at least one step. A block fixes the
    same number of positions in each of its steps. If this isn't possible, its first steps fix one
    more position each. Steps that wouldn't fix any position are omitted. Positions before a step's
    range never change again. Raises `InvalidArgument` if any number is less than 1.
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

    After a fraction t of the steps, cos(t * pi / 2) of the positions are still masked. Their number
    is rounded down in float32. However, it decreases by at least one in each step, and at least one
    position remains masked until the last step, which fixes everything. The noise starts at
    `temperature`, and each step multiplies the previous step's noise by 1 - t. If `count` is small,
    there may be fewer than `steps` steps. Raises `InvalidArgument` if `count` or `steps` is less
    than 1 or if the temperature is negative.
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
