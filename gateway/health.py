"""Whether the gateway can serve, stage by stage."""

from __future__ import annotations

import msgspec

from gateway.stages import Stages


class StageHealth(msgspec.Struct, frozen=True):
    """One stage: where it is, whether it is ready, and why not."""

    address: str
    ready: bool
    reason: str


class HealthReport(msgspec.Struct, frozen=True):
    """All stages; `reason` says why the whole is not ready."""

    ready: bool
    reason: str
    stages: dict[str, StageHealth]


def health_report(stages: Stages) -> HealthReport:
    """How things stand now."""
    fault = stages.fault()
    return HealthReport(
        ready=fault is None,
        reason="" if fault is None else fault.message,
        stages={s.role: StageHealth(s.address, s.ready, s.reason) for s in stages},
    )
