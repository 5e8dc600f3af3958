"""A resumable training loop that is used for all parts.

The learning rate has a warm-up, followed by a constant phase and a linear decay. The result is a
running average of the weights. Batches are determined by the number of the step, so interrupting a
run does not change its result.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

from antiphon.errors import FailedPrecondition

Loss = Callable[[int], tuple[torch.Tensor, dict[str, float]]]

WARM_UP = 50
SAVE_SECONDS = 60.0
SMOOTHING = 0.95


@dataclass(frozen=True, slots=True)
class Plan:
    """The length and the learning rate of a training run."""

    steps: int
    rate: float
    average: float = 0.998
    falling: float = 0.4
    lowest: float = 0.03
    clip: float = 1.0
    betas: tuple[float, float] = (0.9, 0.98)
    decay: float = 0.01

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step."""
        left = (self.steps - step) / max(1.0, self.falling * self.steps)
        return self.rate * min(1.0, (step + 1) / WARM_UP, max(self.lowest, left))


class TrainingRun:
    """The state of a training run: weights, their average, the optimizer, and the current step.

    `seconds` is the CPU time that was used. `figures` contains metrics that are smoothed over the
    last steps. If the file `state` exists, the run is resumed. Raises `FailedPrecondition` if the
    run was started with a different plan, because its learning rates would be inconsistent.
    """

    def __init__(self, module: torch.nn.Module, plan: Plan, state: Path) -> None:
        self._plan, self._state = plan, state
        self.parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self.average = {name: each.detach().clone() for name, each in self.parameters.items()}
        self._optimiser = torch.optim.AdamW(
            self.parameters.values(), lr=plan.rate, betas=plan.betas, weight_decay=plan.decay
        )
        self.step = 0
        self.seconds = 0.0
        self.figures: dict[str, float] = {}
        if state.is_file():
            self._load()

    def train(self, loss: Loss, title: str, seconds: float = math.inf) -> bool:
        """Train until the last step of the plan, but no longer than `seconds`.

        Returns whether the last step was reached.
        """
        started, saved = time.process_time(), time.monotonic()
        last = saved + seconds
        before = self.seconds
        with tqdm(total=self._plan.steps, initial=self.step, desc=title, unit="step") as bar:
            while self.step < self._plan.steps and time.monotonic() < last:
                self.figures = _smooth(self.figures, self._step(loss))
                bar.update()
                bar.set_postfix({name: f"{value:.3f}" for name, value in self.figures.items()})
                self.seconds = before + time.process_time() - started
                if time.monotonic() - saved > SAVE_SECONDS:
                    self.save()
                    saved = time.monotonic()
        self.save()
        return self.step >= self._plan.steps

    def _step(self, loss: Loss) -> dict[str, float]:
        for group in self._optimiser.param_groups:
            group["lr"] = self._plan.rate_at(self.step)
        value, figures = loss(self.step)
        self._optimiser.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), self._plan.clip)
        self._optimiser.step()
        self.step += 1
        keep = min(self._plan.average, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                self.average[name].lerp_(parameter, 1 - keep)
        return {"loss": value.item(), **figures}

    def save(self) -> None:
        """Write the complete state as a safetensors file, with the step in its header."""
        tensors = {f"weight.{n}": p.detach().contiguous() for n, p in self.parameters.items()}
        tensors |= {f"average.{name}": each for name, each in self.average.items()}
        for name, parameter in self.parameters.items():
            for key, value in self._optimiser.state[parameter].items():
                tensors[f"{key}.{name}"] = value.contiguous()
        progress = {"step": self.step, "seconds": self.seconds, "figures": self.figures}
        header = {"progress": json.dumps(progress | {"plan": asdict(self._plan)})}
        partial = self._state.with_suffix(".partial")
        save_file(tensors, partial, header)
        partial.replace(self._state)

    @torch.no_grad()
    def _load(self) -> None:
        with safe_open(self._state, framework="pt") as stored:
            progress = json.loads(stored.metadata()["progress"])
            plan = json.loads(json.dumps(asdict(self._plan)))
            if progress["plan"] != plan:
                raise FailedPrecondition(
                    f"{self._state}: was begun as {progress['plan']}, not as {plan}; "
                    "remove it or take another work directory"
                )
            self.step, self.seconds = int(progress["step"]), float(progress["seconds"])
            self.figures = progress["figures"]
            for name, parameter in self.parameters.items():
                parameter.copy_(stored.get_tensor(f"weight.{name}"))
                self.average[name].copy_(stored.get_tensor(f"average.{name}"))
                self._optimiser.state[parameter] = {
                    key: stored.get_tensor(f"{key}.{name}")
                    for key in ("step", "exp_avg", "exp_avg_sq")
                }


def _smooth(old: dict[str, float], new: dict[str, float]) -> dict[str, float]:
    return {n: SMOOTHING * old.get(n, v) + (1 - SMOOTHING) * v for n, v in new.items()}
