"""A stage with steps of a fixed duration: `python -m benchmarks.overload.paced_stage`.

A step performs its usual computation and then waits for the rest of its duration as defined in
`pace.py`, so that other work on the machine hardly affects the result. In all other respects, the
stage is identical to `python -m antiphon_services`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.graph import Pipeline
from antiphon.runtime.engine import EngineEvent, LoadedStage
from antiphon.runtime.server.main import main
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.reproducible import ask_for_equal_digits
from antiphon_services.stage.loading import load_stage
from benchmarks.overload.pace import SESSION_S, STEP_S

Step = Callable[[Collection[SegmentKey]], Sequence[EngineEvent]]


def load_paced(pipeline: Pipeline, role: str, model_dir: Path, config: StageConfig) -> LoadedStage:
    """Load a stage whose engine has steps of a fixed duration."""
    loaded = load_stage(pipeline, role, model_dir, config)
    setattr(loaded.engine, "step", _paced(loaded.engine.step, STEP_S[role]))  # noqa: B010
    return loaded


def _paced(step: Step, step_s: float) -> Step:
    def paced(held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        ends_at = time.perf_counter() + step_s
        events = step(held)
        ends_at += SESSION_S * max(len({event.key for event in events}), 1)
        time.sleep(max(0.0, ends_at - time.perf_counter()))
        return events

    return paced


if __name__ == "__main__":
    ask_for_equal_digits()
    sys.exit(main(load_paced, prog="python -m benchmarks.overload.paced_stage"))
