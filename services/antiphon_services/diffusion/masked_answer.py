"""Performs one step of masked diffusion for several answers in a single call to the model.

A step draws an ID for each masked position in its range and fixes the IDs with the highest
confidence (`unmasking_plan.py`). Draws depend only on the answer's seed, the step and the position,
so an answer doesn't depend on the other answers in the call. Starting it again with the same seed
gives the same result.

The mask's own ID is never drawn. In the vendors' code, drawing it would leave the position masked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.nn.utils.rnn import pad_sequence

from antiphon.errors import Internal, InvalidArgument
from antiphon.transport.device_edge import on_device
from antiphon.values.sampling import Sampling
from antiphon_services.diffusion.llada import Llada
from antiphon_services.diffusion.unmasking_plan import UnmaskingStep
from antiphon_services.lm.sampler import SamplingRows, choose_each, uniform_each

POSITIONS_AT_ONCE = 128
"""The number of positions that are drawn at once. Each position needs a float64 number for every
ID, so this limits the memory usage.
"""
SMALLEST_LOGARITHM = 1e-20


@dataclass(frozen=True, slots=True, eq=False)
class DrawnIds:
    """The IDs that an answer can contain, and the head's rows for these IDs.

    `weight` has the shape [choices, width]. `ids` is int64 [choices], or None if the choices are
    the IDs themselves. Choices marked in `forbidden` (bool [choices]) are never drawn, but still
    count when the confidence of other choices is computed.
    """

    weight: Tensor
    ids: Tensor | None = None
    forbidden: Tensor | None = None

    @classmethod
    def any_but(cls, model: Llada, mask_id: int) -> Self:
        """Return all IDs of the vocabulary except the mask."""
        weight = model.ff_out.weight
        forbidden = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)
        forbidden[mask_id] = True
        return cls(weight, None, forbidden)

    @classmethod
    def only(cls, model: Llada, ids: Sequence[int]) -> Self:
        """Return only the given IDs. Their rows are copied."""
        weight = model.ff_out.weight
        kept = torch.tensor(ids, device=weight.device)
        return cls(weight[kept], kept)


@dataclass(frozen=True, slots=True)
class Guidance:
    """Classifier-free guidance with the logits u + (scale + 1) * (c - u).

    The logits c are computed for the answer's own sequence. The logits u are computed for a second
    sequence with a different `prompt`. In the second sequence, the answer's positions are masked
    unless `sees_answer` is true.
    """

    scale: float
    prompt: Sequence[int]
    sees_answer: bool = True


class MaskedAnswer:
    """An answer between a prompt and the IDs in `after`.

    `ids` (int64 [count]) contains the IDs that have been fixed so far. All other positions contain
    `mask_id`. The confidence of an ID is its probability, which is computed at the temperature of
    `sampling` if `tempered` is true, or at a temperature of 1 otherwise. If the temperature is 0,
    the most likely ID is chosen. `sampling.seed` is the key for all draws.

    An answer is done when the first block that contains one of the IDs in `ends` is finished.
    Everything after that ID is not part of the answer, and later blocks can't change it. `padding`
    is an ID in the prompts that no position attends to. Raises `InvalidArgument` if the plan has no
    steps.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        plan: Sequence[UnmaskingStep],
        drawn: DrawnIds,
        sampling: Sampling,
        *,
        mask_id: int,
        after: Sequence[int] = (),
        guidance: Guidance | None = None,
        tempered: bool = False,
        ends: Sequence[int] = (),
        padding: int | None = None,
    ) -> None:
        if not plan:
            raise InvalidArgument("plan: the answer must have at least one position")
        self._plan, self._drawn, self._sampling = tuple(plan), drawn, sampling
        self._guidance, self._mask_id = guidance, mask_id
        self._tempered = tempered
        device = drawn.weight.device
        self._count = max(step.stop for step in plan)
        self.ids = torch.full((self._count,), mask_id, device=device)
        self._masked = self.ids.clone()
        self._before = torch.tensor(prompt, dtype=torch.int64, device=device)
        self._after = torch.tensor(after, dtype=torch.int64, device=device)
        self._unguided = None
        if guidance is not None:
            self._unguided = torch.tensor(guidance.prompt, dtype=torch.int64, device=device)
        self.padding = padding
        self._ends = torch.tensor(ends, dtype=torch.int64, device=device)
        self._taken = 0
        self._ended = False

    @property
    def steps_taken(self) -> int:
        """The number of steps so far."""
        return self._taken

    @property
    def steps_due(self) -> int:
        """The number of steps for the entire answer. It is smaller than the number in the plan if
        the answer has ended early.
        """
        return self._taken if self._ended else len(self._plan)

    @property
    def done(self) -> bool:
        """Whether all positions are fixed or the answer has ended early."""
        return self._ended or self._taken == len(self._plan)

    @property
    def settled(self) -> int:
        """The number of positions at the beginning that are final because their blocks are
        finished.
        """
        whole = self._taken == len(self._plan)
        return self._count if whole else self._plan[self._taken].start

    @property
    def rows(self) -> int:
        """The number of sequences that a step has to compute."""
        return 1 if self._unguided is None else 2

    @property
    def length(self) -> int:
        """The length of the longest sequence."""
        unguided = 0 if self._unguided is None else len(self._unguided)
        return max(len(self._before), unguided) + self._count + len(self._after)

    def sequences(self) -> list[Tensor]:
        """Return the sequences for the next step, each int64 [length].

        The first one is the answer's own sequence. If there is guidance, the sequence with the
        other prompt follows.
        """
        made = [torch.cat((self._before, self.ids, self._after))]
        if self._unguided is not None and self._guidance is not None:
            answer = self.ids if self._guidance.sees_answer else self._masked
            made.append(torch.cat((self._unguided, answer, self._after)))
        return made

    def advance(self, rows: Sequence[Tensor]) -> None:
        """Take a step, given the rows before the head [length, width] for each of `sequences`.

        Raises `Internal` if the logits are not finite.
        """
        step, noisy = self._plan[self._taken], self._plan[self._taken].noise > 0
        within = self.ids[step.start : step.stop] == self._mask_id
        at = within.nonzero()[:, 0] + step.start
        keys = uniform_each([self._sampling.seed], [self._taken], self._count * (2 if noisy else 1))
        numbers = on_device(keys[0], self.ids.device)
        drawn, confidence = self._draw(rows, at, numbers)
        if noisy:
            noise = _gumbel(numbers[self._count :][at])
            confidence = confidence.clamp(min=SMALLEST_LOGARITHM).log() + step.noise * noise
        most = confidence.argsort(descending=True, stable=True)[: step.fixed]
        self.ids[at[most]] = drawn[most]
        before = self.settled
        self._taken += 1
        if len(self._ends) and self.settled > before:
            self._ended = bool(torch.isin(self.ids[before : self.settled], self._ends).any())

    def _draw(self, rows: Sequence[Tensor], at: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return IDs (int64 [n]) and confidences (float64 [n]) for the answer's positions `at`."""
        parts = [
            self._draw_part(rows, part, numbers) for part in torch.split(at, POSITIONS_AT_ONCE)
        ]
        ids, confidences = zip(*parts, strict=True)
        return torch.cat(ids), torch.cat(confidences)

    def _draw_part(
        self, rows: Sequence[Tensor], at: Tensor, numbers: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = linear(rows[0][len(self._before) + at], self._drawn.weight).float()
        if self._unguided is not None and self._guidance is not None:
            without = linear(rows[1][len(self._unguided) + at], self._drawn.weight).float()
            logits = without + (self._guidance.scale + 1.0) * (logits - without)
        settings = SamplingRows.of([self._sampling] * len(at), logits.device)
        choices, best = choose_each(
            logits, settings, numbers[at, None], suppressed=self._drawn.forbidden
        )
        if not math.isfinite(best.sum().item()):
            raise Internal(f"step {self._taken}: the logits are not finite")
        if self._tempered and not self._sampling.greedy:
            logits = logits / self._sampling.temperature
        confidence = _probabilities(logits, choices)
        return choices if self._drawn.ids is None else self._drawn.ids[choices], confidence


def sequence_rows(model: Llada, answers: Sequence[MaskedAnswer]) -> list[list[Tensor]]:
    """Return the argument for each answer's `advance`. All of them are computed in one call to the
    model.

    The sequences are padded to the length of the longest one. Nothing is kept between steps,
    because every position can affect all others.
    """
    sequences = [each.sequences() for each in answers]
    flat = [ids for of_answer in sequences for ids in of_answer]
    lengths = torch.tensor([len(ids) for ids in flat], device=flat[0].device)
    padded = pad_sequence(flat, batch_first=True)
    seen = torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]
    first = 0
    for answer, own in zip(answers, sequences, strict=True):
        if answer.padding is not None:
            seen[first : first + len(own)] &= padded[first : first + len(own)] != answer.padding
        first += len(own)
    whole = len({len(ids) for ids in flat}) == 1 and all(each.padding is None for each in answers)
    rows = iter(model(padded, None if whole else seen))
    return [[next(rows) for _ in own] for own in sequences]


def _probabilities(logits: Tensor, choices: Tensor) -> Tensor:
    """Return the softmax (float64 [n]) of `logits` [n, choices] at one choice per row.

    This only needs one float64 copy of the logits, whereas a full softmax needs two.
    """
    wide = logits.double()
    weights = wide.sub_(wide.amax(-1, keepdim=True)).exp_()
    return weights.gather(1, choices[:, None])[:, 0] / weights.sum(-1)


def _gumbel(numbers: Tensor) -> Tensor:
    """Return standard Gumbel noise for numbers in [0, 1), with the same limits as in MaskGIT's
    code.
    """
    inner = -numbers.clamp(min=SMALLEST_LOGARITHM).log()
    return -inner.clamp(min=SMALLEST_LOGARITHM).log()
