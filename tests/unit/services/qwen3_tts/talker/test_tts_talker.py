"""Greedy codes are those of the vendor's package, in both text modes and with every voice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.values.chunk import Tensors
from antiphon.values.segment import FinishReason
from antiphon_services.lm import frames
from antiphon_services.qwen3_tts.talker.engine import CODES
from tests.replayed_graphs import ReplayPool
from tests.unit.services.qwen3_tts.talker.tts_talker_lab import (
    CASES,
    SAMPLED,
    SLOTS,
    Lab,
    frames_of,
)


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def launch_ahead(request: pytest.FixtureRequest) -> bool:
    ahead: bool = request.param
    return ahead


@pytest.mark.parametrize("name", CASES)
def test_codes_equal_the_recorded(name: str, labs: dict[str, Lab]) -> None:
    case = CASES[name]
    lab = labs[case.kind]
    (output,) = lab.speak(lab.ask(case))
    expected = lab.expected(case)
    assert frames_of(output) == expected
    # Where all frames came the last draw may have been the stop code as well.
    if len(expected) < case.max_new_tokens - 1:
        assert output.finish_reason(CODES) is FinishReason.STOP
    primed = [each for each in output.emitted if each.prime]
    assert output.emitted[: len(primed)] == primed
    codes = [each.tensors["codes"].tolist() for each in primed]
    assert codes == [lab.recorded[f"{case.recording.name}/codes"].tolist()] * (
        case.clone == "codes"
    )


@pytest.mark.parametrize("kind", ["custom_voice", "base"])
def test_codes_are_those_of_each_alone_when_spoken_in_company(
    kind: str, labs: dict[str, Lab]
) -> None:
    cases = [case for case in CASES.values() if case.kind == kind and "trailing" in case.name]
    lab, cases = labs[kind], cases[:SLOTS]
    together = lab.speak(*(lab.ask(case) for case in cases))
    assert [frames_of(each) for each in together] == [lab.expected(case) for case in cases]


@pytest.mark.parametrize("name", ["instruction-2-trailing", "codes-2-trailing"])
def test_sampled_codes_depend_on_the_seed_and_not_on_company(
    name: str, labs: dict[str, Lab]
) -> None:
    case = CASES[name]
    lab = labs[case.kind]
    questions = [lab.ask(case, replace(SAMPLED, seed=seed)) for seed in range(8)]
    alone = [frames_of(lab.speak(each)[0]) for each in questions]
    assert [frames_of(each) for each in lab.speak(*questions)] == alone
    assert len({json.dumps(each) for each in alone}) > 4


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("name", ["instruction-4-whole", "codes-4-whole", "codes-1-trailing"])
def test_codes_equal_the_recorded_when_the_prompt_is_read_in_parts(
    name: str, rows: int, labs: dict[str, Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "PART_ROWS", rows)
    case = CASES[name]
    lab = labs[case.kind]
    (output,) = lab.speak(lab.ask(case))
    assert frames_of(output) == lab.expected(case)


def test_codes_equal_the_recorded_when_graphs_write_where_they_wrote_before(
    checkpoints: dict[str, Path], recorded: Tensors, launch_ahead: bool
) -> None:
    lab = Lab(checkpoints["base"], recorded, bucketing=ReplayPool(), launch_ahead=launch_ahead)
    cases = [CASES[name] for name in ("vector-2-trailing", "codes-2-trailing", "codes-3-whole")]
    outputs = lab.speak(*(lab.ask(case) for case in cases))
    assert [frames_of(each) for each in outputs] == [lab.expected(case) for case in cases]


def test_clone_speaks_when_the_stage_computes_in_bfloat16(
    checkpoints: dict[str, Path], recorded: Tensors
) -> None:
    lab = Lab(checkpoints["base"], recorded, dtype="bfloat16")
    (output,) = lab.speak(lab.ask(CASES["codes-1-trailing"]))
    assert frames_of(output)
    assert output.emitted[0].tensors["codes"].shape == recorded["reference/codes"].shape
