"""Creates the settings that a stage's engine receives for a request, for tests that call engines
without a runtime.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from antiphon.pipelines.graph import Pipeline
from antiphon.runtime.engine import SegmentSettings
from antiphon.runtime.session.plan import SegmentRequest, StageLimits, StagePlan
from antiphon.values.sampling import Sampling, SamplingRequest

_LIMITS = StageLimits(slots=1, stall_timeout_s=1.0, hold_timeout_s=1.0, hold_bytes=1)


def stage_settings(
    pipeline: Pipeline,
    role: str,
    sampling: Sampling,
    seed: int,
    *,
    choice: int = 0,
    outputs: Collection[str] = (),
    voice: str = "",
) -> SegmentSettings:
    """Return the settings of a segment whose request has this `sampling`, with the given `seed`."""
    request = SegmentRequest(
        segment=0,
        sampling=SamplingRequest(seed=seed),
        voice=voice,
        outputs=frozenset(outputs),
        delivery={},
        choice=choice,
    )
    plan = StagePlan.of(pipeline, role, replace(sampling, seed=0), _LIMITS)
    return plan.settings(request, frozenset(outputs))
