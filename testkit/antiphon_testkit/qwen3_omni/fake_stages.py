"""Serves a stage of the family, for tests: `running_stage` with its pipeline."""

from __future__ import annotations

from functools import partial

from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon_testkit import stage_harness

running_stage = partial(stage_harness.running_stage, pipeline=PIPELINE)
