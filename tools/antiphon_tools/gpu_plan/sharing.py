"""Assigns stages to GPUs. The functions in this module have no side effects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from antiphon_tools.gpu_plan.stage_needs import StageNeeds


@dataclass(frozen=True, slots=True)
class GpuShare:
    """The stages on a GPU with `size` bytes of memory."""

    stages: tuple[StageNeeds, ...]
    size: int

    @property
    def total(self) -> int:
        """The memory of all stages and their sessions, in bytes."""
        return sum(each.total for each in self.stages)

    @property
    def fits(self) -> bool:
        """Whether all stages and their sessions fit on the GPU."""
        return self.total <= self.size

    @property
    def most_sessions(self) -> int | None:
        """The maximum number of sessions if all stages have the same number.

        It is None if sessions do not require memory.
        """
        session = sum(each.session for each in self.stages)
        room = self.size - sum(each.fixed for each in self.stages)
        return max(room // session, 0) if session else None if room >= 0 else 0


def most_positions(needs: StageNeeds, size: int) -> int:
    """Return the maximum session length for a stage that does not share its GPU.

    The result does not exceed the stage's `most`. It is 0 if no session fits.
    """
    if not needs.position_bytes:
        return 0
    room = size - needs.fixed - needs.sessions * needs.session_state
    return min(max(room // (needs.sessions * needs.position_bytes), 0), needs.most)


def share_gpus(stages: Sequence[StageNeeds], size: int) -> list[GpuShare]:
    """Assign stages to as few GPUs with `size` bytes of memory as possible.

    All sessions of the stages must fit into memory. Among the possible assignments, the one that
    uses the least memory on its fullest GPU is chosen. A stage that is too large for a GPU is given
    one of its own.
    """
    fitting = [each for each in stages if each.total <= size]
    alone = [GpuShare((each,), size) for each in stages if each.total > size]
    divisions = (
        [GpuShare(tuple(group), size) for group in groups] for groups in _divisions(fitting)
    )
    best = min(
        (shares for shares in divisions if all(each.fits for each in shares)),
        key=lambda shares: (len(shares), max((each.total for each in shares), default=0)),
    )
    order = [each.role for each in stages]
    return sorted([*best, *alone], key=lambda each: order.index(each.stages[0].role))


def _divisions(stages: Sequence[StageNeeds]) -> Iterator[list[list[StageNeeds]]]:
    """Yield all partitions of the stages into groups. Pipelines only have a few stages."""
    if not stages:
        yield []
        return
    first, rest = stages[0], stages[1:]
    for groups in _divisions(rest):
        yield [[first], *groups]
        for index, group in enumerate(groups):
            yield [*groups[:index], [first, *group], *groups[index + 1 :]]
