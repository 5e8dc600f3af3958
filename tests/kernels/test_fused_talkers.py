"""Whole talkers with the setting `fused`, on a CPU: the codes of the operations, compiled once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch._dynamo.utils import counters

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines import qwen2_5_omni, qwen3_omni, qwen3_tts
from antiphon.pipelines.graph import Pipeline
from antiphon.runtime.engine import InputChunk
from antiphon_services.stage.loading import load_stage
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint as build_omni25
from antiphon_testkit.qwen3_omni.tiny_checkpoint import SMALL
from antiphon_testkit.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint as build_omni3
from antiphon_testkit.qwen3_tts.tiny_checkpoint import build_tiny_tts
from antiphon_tools.verify_release.forced import answer, greedy, made_codes, question_input

QUESTION = "How many steps does a long answer take?"
FRAMES = 64

Build = Callable[[Path], Any]
FAMILIES: dict[str, tuple[Pipeline, Build]] = {
    "qwen3-omni": (qwen3_omni.PIPELINE, lambda path: build_omni3(path, SMALL)),
    "qwen2.5-omni": (qwen2_5_omni.PIPELINE, build_omni25),
    "qwen3-tts": (qwen3_tts.PIPELINE, build_tiny_tts),
}


def said(pipeline: Pipeline, model: Path, config: StageConfig) -> list[InputChunk]:
    """What a talker gets: the text itself, or a thinker's answer to it."""
    if "thinker" not in pipeline.roles:
        return question_input(QUESTION)
    thinker = load_stage(pipeline, "thinker", model, config)
    settings = greedy(thinker, pipeline, "thinker", 12)
    return answer(thinker.engine, settings, question_input(QUESTION)).inputs_of(pipeline, "talker")


@pytest.mark.parametrize("family", FAMILIES)
def test_codes_are_equal_and_no_position_is_compiled_for(family: str, tmp_path: Path) -> None:
    pipeline, build = FAMILIES[family]
    model = tmp_path / "model"
    build(model)
    plain = StageConfig(slots=2, context_limit=256, engine="torch")
    fused = stage_config(slots=2, context_limit=256, engine="torch", fused=True)
    inputs = said(pipeline, model, plain)
    wanted, made = [], []
    for config, codes in ((plain, wanted), (fused, made)):
        talker = load_stage(pipeline, "talker", model, config)
        graphs = []
        for most in (2, FRAMES):
            settings = greedy(talker, pipeline, "talker", most)
            codes.append(made_codes(answer(talker.engine, settings, inputs)))
            graphs.append(counters["stats"]["unique_graphs"])
        assert graphs[0] == graphs[1]
    assert graphs[0] > 0
    assert len(wanted[1]) > 8
    assert [each.tolist() for each in made] == [each.tolist() for each in wanted]
