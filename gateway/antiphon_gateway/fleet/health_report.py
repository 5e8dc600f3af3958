"""Reports whether the gateway can serve requests. There is a result for each stage and
each output.
"""

from __future__ import annotations

import msgspec

from antiphon.errors import AntiphonError
from antiphon.pipelines.graph import CLIENT
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.replicated_stage import ReplicatedStage


class StageHealth(msgspec.Struct, frozen=True):
    """The health of one stage. It contains the stage's address, whether the stage is ready, and the
    reason if it isn't.

    If the stage has several replicas, `address` is the address of one of them. `replicas` is the
    total number of replicas, and `serving` is the number of those that are serving.
    """

    address: str | msgspec.UnsetType
    ready: bool
    reason: str
    replicas: int | msgspec.UnsetType = msgspec.UNSET
    serving: int | msgspec.UnsetType = msgspec.UNSET


class HealthReport(msgspec.Struct, frozen=True):
    """The health of all stages. `reason` explains why the deployment isn't ready.

    `outputs` states for each output whether requests for it can be served. This can be the case
    even if the deployment as a whole isn't ready. `outputs` is empty until a stage has reported the
    graph.
    """

    ready: bool
    reason: str
    outputs: dict[str, bool]
    stages: dict[str, StageHealth]


NOT_READY = "not ready; request /health with an API key for the reason"


def health_report(fleet: Fleet, *, detailed: bool = True) -> HealthReport:
    """Return the current health. Addresses are included only if `detailed` is true. The same
    applies to reasons, because they can contain addresses.
    """
    fault = fleet.fault()
    reason = "" if fault is None else fault.message
    return HealthReport(
        ready=fault is None,
        reason=reason if detailed or not reason else NOT_READY,
        outputs=_outputs(fleet),
        stages={stage.role: _stage_health(stage, detailed=detailed) for stage in fleet},
    )


def _stage_health(stage: ReplicatedStage, *, detailed: bool) -> StageHealth:
    counts = (len(stage), stage.serving) if len(stage) > 1 else ()
    if not detailed:
        return StageHealth(msgspec.UNSET, stage.ready, "" if stage.ready else NOT_READY, *counts)
    return StageHealth(stage.address, stage.ready, stage.reason, *counts)


def _outputs(fleet: Fleet) -> dict[str, bool]:
    """Return a mapping from each output to whether a request for it could currently be served."""
    if not fleet.descriptions:
        return {}
    names = [edge.name for edge in fleet.edges() if edge.consumer == CLIENT]
    return {name: _served(fleet, name) for name in names}


def _served(fleet: Fleet, output: str) -> bool:
    try:
        fleet.line_up(frozenset({output}))
    except AntiphonError:
        return False
    return True
