"""Which positions of a masked answer a step may fix, and how many.

An answer starts with all positions masked. A step draws an id for each masked position of its range
and fixes the ids with the highest confidence. The others stay masked. The plan depends only on the
length and the settings, so the number of steps is known before the first one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from antiphon.errors import InvalidArgument

QUARTER_TURN = np.float32(math.pi / 2)


@dataclass(frozen=True, slots=True)
class UnmaskingStep:
    """A step draws the masked positions from `start` to `stop` of the answer and fixes `fixed` of
    them, at least one.

    `noise` is the factor of the Gumbel noise on the logarithms of the probabilities that order the
    positions.
    """

    start: int
    stop: int
    fixed: int
    noise: float = 0.0


def block_steps(count: int, block: int, steps: int) -> tuple[UnmaskingStep, ...]:
    """Plan `count` positions in blocks of `block`, from left to right (LLaDA's semi-autoregressive
    sampling, arXiv:2502.09992).

    Each block gets an equal part of `steps`, rounded down and at least one, and fixes an equal
    number of positions in each of its steps; the first steps of a block fix one more if that does
    not divide. A step without a position to fix is omitted. Positions before the start of a step's
    range never change again. Raises `InvalidArgument` for a number below 1.
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

    After a fraction t of the steps, cos(t * pi / 2) of the positions are masked, rounded down in
    float32, but one fewer than before and at least one. The last step fixes all positions.
    The noise of a step is that of the step before, times 1 - t; it starts with `temperature`.
    `count` positions may need fewer than `steps` steps. Raises `InvalidArgument` for a `count` or
    `steps` below 1 or a negative temperature.
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
