"""Serves a stage of this family in tests. It is `running_stage` with the family's pipeline."""

from __future__ import annotations

from functools import partial

from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon_testkit import stage_harness

running_stage = partial(stage_harness.running_stage, pipeline=PIPELINE)
