"""The velocity of the flow as a function of blocks, so that a GPU can replay it as a CUDA graph.

Each input has one row per block, including its neighbours and its recalled block. Calls with few
blocks are padded to the size of a bucket, and the padding doesn't affect the other blocks. A graph
can't include memories, so they are read before a replay and written after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from antiphon.transport.device_edge import on_device
from antiphon_services.flow.work import Work, run_to_end
from antiphon_services.lm.attention_calls import additive_mask
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.lm.rotary import Rotation
from antiphon_services.qwen2_5_omni.token2wav.blocks import HALVES, BlockPlan, BlockWindow
from antiphon_services.qwen2_5_omni.token2wav.solver import EVALUATIONS

GRAPH_BLOCKS = 16
"""The maximum number of blocks in a call that can be replayed. With the released model's sizes, an
evaluation of this many blocks takes about as long as an engine step.
"""

Evaluate = Callable[[Tensor, Tensor, Tensor, Any, Rotation], Work[Tensor]]
"""The type of `Flow.evaluate`."""


class ReplayedPlan:
    """The attention of a call, like `BlockPlan`, but based on tensors that have one row per block.

    `own` (bool [blocks, frames]) marks valid frames. `behind` and `ahead` (bool [blocks]) mark
    blocks that have a previous or a next block. `recalls` marks blocks whose previous block is in
    `recalled` [blocks, layers that attend to the previous block, 2, HALVES, frames, heads,
    head_dim].
    """

    def __init__(
        self, own: Tensor, behind: Tensor, ahead: Tensor, recalls: Tensor, recalled: Tensor
    ) -> None:
        self._own, self._behind, self._ahead = own, behind, ahead
        self._recalls, self._recalled = recalls, recalled
        self.kept: list[Tensor] = []
        """The keys and values of each layer that has attended to the previous block so far, in the
        same form as `recalled`.
        """
        self._masks: dict[tuple[bool, bool], Tensor] = {}

    def seen(
        self, own: Tensor, evaluation: int | Tensor, window: BlockWindow
    ) -> tuple[Tensor, Tensor]:
        """Implements `BlockPlan.seen`. The result always includes a mask.

        Masked keys and values are replaced by the block's own. Otherwise, values that are not
        finite could spread from another utterance.
        """
        looking, ahead = window.looking, window.ahead
        halves = own.view(HALVES, -1, *own.shape[1:])
        parts = [halves]
        if looking is not None:
            self.kept.append(halves.permute(1, 2, 0, 3, 4, 5))
            before = torch.where(_wide(self._behind), halves.roll(1, 1), halves)
            recalled = self._recalled[:, looking].permute(2, 0, 1, 3, 4, 5)
            parts.insert(0, torch.where(_wide(self._recalls), recalled, before))
        if ahead:
            parts.append(torch.where(_wide(self._ahead), halves.roll(-1, 1), halves))
        looks = looking is not None, ahead
        if looks not in self._masks:
            self._masks[looks] = self._make_mask(*looks, own.dtype)
        return torch.cat(parts, 3).flatten(0, 1), self._masks[looks]

    def _make_mask(self, behind: bool, ahead: bool, dtype: torch.dtype) -> Tensor:
        """Return an additive mask [HALVES * blocks, 1, 1, keys] for all layers with the same
        window.
        """
        parts = [self._own]
        if behind:
            parts.insert(0, self._behind[:, None].expand_as(self._own))
        if ahead:
            parts.append(self._own.roll(-1, 0) & self._ahead[:, None])
        hidden = torch.cat(parts, 1).logical_not().repeat(HALVES, 1)
        return additive_mask(hidden[:, None, None], dtype)


@dataclass(frozen=True, slots=True)
class FlowSizes:
    """The widths of the flow's rows, and the shape of a memory at one evaluation.

    The first dimension of the memory is the number of layers that attend to the previous block.
    """

    frames: int
    mel: int
    width: int
    head_dim: int
    memory: tuple[int, ...]
    device: torch.device


class FlowGraphs:
    """The velocity function for calls of up to `GRAPH_BLOCKS` blocks. `bucketing` replays the
    calls.
    """

    def __init__(self, evaluate: Evaluate, sizes: FlowSizes, bucketing: Bucketing) -> None:
        self._evaluate, self._sizes = evaluate, sizes
        most, frames = GRAPH_BLOCKS, sizes.frames

        def rows(*shape: int) -> Tensor:
            return torch.zeros(most, *shape, device=sizes.device)

        flags = torch.zeros(3, most, dtype=torch.bool, device=sizes.device)
        # Every block must attend to something, because a softmax over zero elements is not finite.
        own = torch.ones(most, frames, dtype=torch.bool, device=sizes.device)
        turns = rows(frames, sizes.head_dim), rows(frames, sizes.head_dim)
        value, given = rows(frames, sizes.mel), rows(HALVES, frames, sizes.width)
        numbers = torch.arange(EVALUATIONS, device=sizes.device)
        self._numbers = numbers[:, None].repeat(1, most)
        buffers = (value, self._numbers[0].clone(), given, *turns, own, *flags, rows(*sizes.memory))
        self._run = bucketing(self._forward, buffers, 1)

    def takes(self, plan: BlockPlan) -> bool:
        """Return whether a call fits into a bucket."""
        return plan.count <= GRAPH_BLOCKS

    def velocity(
        self, plan: BlockPlan, given: Tensor, turns: tuple[Tensor, Tensor], layers: int
    ) -> Callable[[int, Tensor], Work[Tensor]]:
        """Return the velocity function of a call that fits into a bucket.

        `given` [HALVES * blocks, frames, width] is the argument of `Flow.evaluate`. `turns`
        contains the cosines and sines of the rows, each with shape [blocks, frames, head_dim].
        """
        count, device = plan.count, self._sizes.device
        by_block = given.view(HALVES, count, *given.shape[1:]).transpose(0, 1)
        recalls = [block in {at for _, at in plan.recalled} for block in range(count)]
        flags = (plan.own, plan.has_behind, plan.has_ahead)
        placed = [*(on_device(each, device) for each in flags), on_device(recalls, device)]
        recalled = given.new_zeros(count, *self._sizes.memory)

        def velocity(evaluation: int, value: Tensor) -> Work[Tensor]:
            for memory, block in plan.recalled:
                recalled[block] = memory.seen[evaluation]
            number = self._numbers[evaluation, :count]
            made, kept = self._run(value, number, by_block, *turns, *placed, recalled)
            for memory, block in plan.kept:
                memory.seen[evaluation] = kept[block]
            # All layers are computed at once.
            yield given.shape[0] * given.shape[1] * layers
            # The next replay overwrites this output.
            return made.clone()

        return velocity

    def _forward(
        self,
        value: Tensor,
        evaluation: Tensor,
        given: Tensor,
        cosines: Tensor,
        sines: Tensor,
        own: Tensor,
        behind: Tensor,
        ahead: Tensor,
        recalls: Tensor,
        recalled: Tensor,
    ) -> tuple[Tensor, Tensor]:
        plan = ReplayedPlan(own, behind, ahead, recalls, recalled)
        rotation = Rotation.of_rows(cosines.repeat(HALVES, 1, 1), sines.repeat(HALVES, 1, 1))
        by_half = given.transpose(0, 1).flatten(0, 1)
        made = run_to_end(self._evaluate(value, by_half, evaluation[:1], plan, rotation))
        return made, torch.stack(plan.kept, 1) if plan.kept else recalled


def _wide(flags: Tensor) -> Tensor:
    """Broadcast one flag per block to the shape of keys and values [HALVES, blocks, 2, frames,
    heads, head_dim].
    """
    return flags[:, None, None, None, None]
