"""Whether the gateway can serve, stage by stage and output by output."""

from __future__ import annotations

import msgspec

from antiphon.errors import AntiphonError
from antiphon.pipelines.graph import CLIENT
from gateway.fleet.stages import Stages


class StageHealth(msgspec.Struct, frozen=True):
    """One stage: where it is, whether it is ready, and why not."""

    address: str
    ready: bool
    reason: str


class HealthReport(msgspec.Struct, frozen=True):
    """All stages; `reason` says why the whole is not ready.

    `outputs` says which of the model's outputs requests get nevertheless; it is empty
    until a stage has told the graph.
    """

    ready: bool
    reason: str
    outputs: dict[str, bool]
    stages: dict[str, StageHealth]


def health_report(stages: Stages) -> HealthReport:
    """How things stand now."""
    fault = stages.fault()
    return HealthReport(
        ready=fault is None,
        reason="" if fault is None else fault.message,
        outputs=_outputs(stages),
        stages={s.role: StageHealth(s.address, s.ready, s.reason) for s in stages},
    )


def _outputs(stages: Stages) -> dict[str, bool]:
    """Whether a request for each output would be served now."""
    if not stages.descriptions:
        return {}
    names = [edge.name for edge in stages.edges() if edge.consumer == CLIENT]
    return {name: _served(stages, name) for name in names}


def _served(stages: Stages, output: str) -> bool:
    try:
        stages.line_up(frozenset({output}))
    except AntiphonError:
        return False
    return True
