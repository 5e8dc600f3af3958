"""A stage process without a model, run as `python -m tests.integration.fake_stage code2wav`."""

from __future__ import annotations

import sys
from pathlib import Path

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.graph import Pipeline
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.server.main import main
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine


def load(pipeline: Pipeline, role: str, model_dir: Path, config: StageConfig) -> LoadedStage:
    """The fake engine; it hangs on nothing, and an exploding frame ends a step."""
    return LoadedStage(FakeEngine(), FACTS, is_fatal=lambda error: "exploded" in str(error))


if __name__ == "__main__":
    sys.exit(main(load))
