"""The flow head, which computes the latents of a step.

Its inputs are a hidden state and the preceding latents. This module mirrors the vendor's
`FlowLoss.sample`. It solves four latents with ten Euler steps and classifier-free guidance. If the
temperature is above 0, noise is added after each step except the last one. Ming-flash-omni also
adds noise after the last step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from antiphon.pipelines.ming_tts import HISTORY_LATENTS, LATENT_WIDTH, STEP_LATENTS
from antiphon_services.flow.euler import EulerSteps
from antiphon_services.flow.normal_draws import normal_draws
from antiphon_services.ming_tts.talker.blocks import RmsTransformer, affine
from antiphon_services.ming_tts.talker.module import TIME_WIDTH

STEPS = 10
GUIDANCE = 2.0
NOISE = 0.25
"""The standard deviation of the noise per unit of flow time at temperature 1."""

_TIME_SCALE, _TIME_BASE = 1000, 10_000


def step_draws(key: int, step: int, noises: int) -> Tensor:
    """Return the random numbers of a step, as a float32 tensor of shape [1 + noises, 4, 64].

    The first entry is the initial value. The remaining entries are the noise.
    """
    count = 1 + noises
    numbers = normal_draws(key, step, count * STEP_LATENTS * LATENT_WIDTH)
    return torch.from_numpy(numbers).view(count, STEP_LATENTS, LATENT_WIDTH)


class FlowHead:
    """Computes latents with the `flowloss.cfm.model` module of the checkpoint.

    If `noisy_end` is true, noise is also added after the last step.
    """

    def __init__(self, module: Any, *, noisy_end: bool) -> None:
        self.noises = STEPS if noisy_end else STEPS - 1
        """The number of times that noise is added if the temperature is above 0."""
        self._latents = affine(module.x_embedder)
        self._condition = affine(module.c_embedder.cond_embedder)
        self._transformer = RmsTransformer(module, 1 + HISTORY_LATENTS + STEP_LATENTS)
        self._steps = EulerSteps.pruned(STEPS)
        self._device = self._latents[0].device
        self._dtype = self._latents[0].dtype
        self._times = module.t_embedder.time_mlp(self._embedded(self._steps.times))

    def _embedded(self, times: Tensor) -> Tensor:
        """Return embeddings of shape [evaluations, `TIME_WIDTH`], in which sines precede
        cosines.
        """
        half = TIME_WIDTH // 2
        rates = torch.exp(torch.arange(half).float() * -(math.log(_TIME_BASE) / (half - 1)))
        angles = _TIME_SCALE * times[:, None] * rates
        both = torch.cat((angles.sin(), angles.cos()), 1)
        return both.to(self._device, self._dtype)

    def solve(
        self,
        states: Tensor,
        history: Tensor,
        draws: Sequence[Tensor],
        temperatures: Sequence[float],
    ) -> Tensor:
        """Compute the latents that follow `history`, as a tensor of shape [n, 4, 64].

        `states` has shape [n, hidden], and `history` has shape [n, 32, 64]. `draws` contains the
        result of `step_draws` for each of them.
        """
        conditions = linear(torch.cat((states, torch.zeros_like(states))), *self._condition)
        past = linear(history, *self._latents).repeat(2, 1, 1)
        value = torch.stack([each[0] for each in draws]).to(self._device, self._dtype)
        for number, width in enumerate(self._steps.widths):
            now = linear(value, *self._latents).repeat(2, 1, 1)
            head = (conditions + self._times[number])[:, None]
            rows = torch.cat((head, past, now), 1)
            guided, free = self._transformer.forward(rows, slice(-STEP_LATENTS, None)).chunk(2)
            value = value + width * (guided + (guided - free) * GUIDANCE)
            if number < self.noises:
                value = self._warmed(value, width, number, draws, temperatures)
        return value

    def _warmed(
        self,
        value: Tensor,
        width: float,
        number: int,
        draws: Sequence[Tensor],
        temperatures: Sequence[float],
    ) -> Tensor:
        """Add noise to all values whose temperature is above 0."""
        for place, temperature in enumerate(temperatures):
            if temperature > 0:
                scale = NOISE * math.sqrt(temperature) * math.sqrt(width)
                noise = draws[place][number + 1].to(self._device, self._dtype)
                value[place] += scale * noise
        return value
