"""A stage of the toy family whose steps take a while: `python -m tests.cluster.paced_stage`.

They take the seconds that `STEP_S` says. So answers last, on a machine that computes nothing for
them, and slots mean something. It is `python -m antiphon_services` without torch, which many pods
at a time would each take their time to load.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import cast

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.graph import Pipeline
from antiphon.runtime.engine import Engine, EngineEvent, LoadedStage, SegmentSettings
from antiphon.runtime.server.main import main
from antiphon.values.segment import SegmentKey

ADMITTED = "admitted at"


def paced(engine: Engine, step_s: float) -> None:
    """Have its steps take so long; the engine's thread waits and computes nothing. Each segment
    that is admitted is a line of the output, with the time."""
    step, admit = engine.step, engine.admit

    def told_admit(key: SegmentKey, settings: SegmentSettings) -> None:
        print(ADMITTED, time.time(), flush=True)
        admit(key, settings)

    def paced_step(held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        ends_at = time.monotonic() + step_s
        events = step(held)
        time.sleep(max(0.0, ends_at - time.monotonic()))
        return events

    setattr(engine, "step", paced_step)  # noqa: B010
    setattr(engine, "admit", told_admit)  # noqa: B010


def load(pipeline: Pipeline, role: str, model_dir: Path, config: StageConfig) -> LoadedStage:
    """The stage of that role."""
    module = importlib.import_module(f"{pipeline.package}.{role}.load")
    loaded = cast(LoadedStage, module.load(model_dir, config))
    paced(loaded.engine, float(os.environ.get("STEP_S", "0")))
    return loaded


if __name__ == "__main__":
    sys.exit(main(load, prog="python -m tests.cluster.paced_stage"))
