from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument
from antiphon_services.qwen2_5_omni.talker.load import load
from antiphon_testkit.conversations import conversation
from antiphon_testkit.flat_settings import stage_config
from tests.unit.services.prefill_steps import prefill_steps
from tests.unit.services.qwen2_5_omni.talker.codec_talker_lab import Lab, settings


def test_rows_of_a_step_are_those_of_the_setting(omni25_directory: Path, lab: Lab) -> None:
    engine = load(
        omni25_directory, stage_config(slots=2, context_limit=512, prefill_rows=128)
    ).engine
    long = lab.ask(conversation(("user", "find the number of days " * 30)))
    steps, positions = prefill_steps(engine, settings(), long.chunks())
    assert positions > 128
    assert steps == -(-positions // 128)


def test_load_is_refused_when_the_slots_do_not_fit_the_machine(omni25_directory: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"slots, context_limit: .* GB"):
        load(omni25_directory, StageConfig(slots=10_000_000))
