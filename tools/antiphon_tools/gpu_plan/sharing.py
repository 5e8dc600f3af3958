"""Which stages share a GPU. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from antiphon_tools.gpu_plan.stage_needs import StageNeeds


@dataclass(frozen=True, slots=True)
class GpuShare:
    """Stages on one GPU of `size` bytes."""

    stages: tuple[StageNeeds, ...]
    size: int

    @property
    def total(self) -> int:
        """Bytes of all stages with their sessions."""
        return sum(each.total for each in self.stages)

    @property
    def fits(self) -> bool:
        """Whether all stages fit with their sessions."""
        return self.total <= self.size

    @property
    def most_sessions(self) -> int | None:
        """Sessions that fit if every stage has as many; None if sessions take nothing."""
        session = sum(each.session for each in self.stages)
        room = self.size - sum(each.fixed for each in self.stages)
        return max(room // session, 0) if session else None if room >= 0 else 0


def most_positions(needs: StageNeeds, size: int) -> int:
    """Return the longest sessions that fit a GPU that a stage has for itself, at most its `most`.

    0 if none fit.
    """
    if not needs.position_bytes:
        return 0
    room = size - needs.fixed - needs.sessions * needs.session_state
    return min(max(room // (needs.sessions * needs.position_bytes), 0), needs.most)


def share_gpus(stages: Sequence[StageNeeds], size: int) -> list[GpuShare]:
    """Return stages on as few GPUs of `size` bytes as hold all of their sessions.

    Among equally few, those whose fullest GPU is the least full. A stage that does not fit a GPU
    has one for itself.
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
    """Yield every division of stages into groups; a pipeline has few."""
    if not stages:
        yield []
        return
    first, rest = stages[0], stages[1:]
    for groups in _divisions(rest):
        yield [[first], *groups]
        for index, group in enumerate(groups):
            yield [*groups[:index], [first, *group], *groups[index + 1 :]]
