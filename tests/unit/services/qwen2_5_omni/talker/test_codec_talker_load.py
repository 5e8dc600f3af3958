from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument
from antiphon_services.qwen2_5_omni.talker.load import load
from antiphon_testkit.flat_settings import stage_config


def test_rows_of_a_step_are_those_of_the_setting(omni25_directory: Path) -> None:
    config = stage_config(slots=2, context_limit=300, prefill_rows=300)
    assert load(omni25_directory, config).engine._prefill_rows == 300  # type: ignore[attr-defined]


def test_load_is_refused_when_the_slots_do_not_fit_the_machine(omni25_directory: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"slots, context_limit: .* GB"):
        load(omni25_directory, StageConfig(slots=10_000_000))
