"""Measures how close the greedy choices of a Hugging Face run were."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerTextTopKRouter,
    Qwen3OmniMoeThinkerTextTopKRouter,
)

from antiphon_testkit.margins import LogitGap


@dataclass(frozen=True, slots=True)
class Margins:
    """The smallest margins of the greedy choices in a run. A margin is infinite if there were no
    choices of its kind.

    The first three are the gaps between the two highest logits, after repetition penalty and
    suppression. `router` is the gap between the last expert that was chosen and the first one that
    wasn't, across all layers and positions of the thinker and the talker.
    """

    thinker: float
    talker: float
    predictor: float
    router: float


@dataclass(slots=True)
class Narrowest:
    """Collects the margins of a run."""

    thinker: LogitGap = field(default_factory=LogitGap)
    talker: LogitGap = field(default_factory=LogitGap)
    predictor: LogitGap = field(default_factory=LogitGap)
    router: float = math.inf

    @contextlib.contextmanager
    def listen(self, model: torch.nn.Module) -> Iterator[None]:
        """Add hooks to the routers and to the code predictor, to which logits processors can't be
        passed.
        """

        def on_predictor(_module: object, _inputs: object, output: Any) -> None:
            self.predictor.record(output.logits[:, -1])

        routers = (Qwen3OmniMoeThinkerTextTopKRouter, Qwen3OmniMoeTalkerTextTopKRouter)
        with contextlib.ExitStack() as stack:
            for module in model.modules():
                if isinstance(module, routers):
                    stack.callback(module.register_forward_hook(self._on_router).remove)
            predictor = model.get_submodule("talker.code_predictor")
            stack.callback(predictor.register_forward_hook(on_predictor).remove)
            yield

    def _on_router(self, router: Any, _inputs: object, output: tuple[torch.Tensor, ...]) -> None:
        """Record a router's margin. `output[0]` contains its logits [positions, experts]."""
        top = output[0].topk(router.top_k + 1, dim=-1).values
        self.router = min(self.router, float((top[:, -2] - top[:, -1]).min()))

    def margins(self) -> Margins:
        """Return the margins so far."""
        return Margins(
            self.thinker.smallest, self.talker.smallest, self.predictor.smallest, self.router
        )
