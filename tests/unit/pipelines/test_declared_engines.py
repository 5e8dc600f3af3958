"""The engines that the pipelines declare, compared with those that the code of their stages
accepts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.pipelines.graph import TORCH_ONLY, TORCH_OR_VLLM, Pipeline
from antiphon.pipelines.registry import own_pipelines

SERVICES = Path(__file__).parents[3] / "services"


@pytest.mark.parametrize("pipeline", own_pipelines().values(), ids=lambda each: each.name)
def test_declared_engines_are_those_that_the_stage_accepts(pipeline: Pipeline) -> None:
    folder = SERVICES.joinpath(*pipeline.package.split("."))
    for stage in pipeline.stages:
        load = (folder / stage.role / "load.py").read_text()
        accepted = TORCH_OR_VLLM if "choose_engine(" in load else TORCH_ONLY
        assert stage.engines == accepted, stage.role
