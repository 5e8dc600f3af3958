"""What a slot of the talker still holds of its session's last turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon.pipelines.qwen2_5_omni import CODES
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.frames import PART_ROWS
from antiphon_services.qwen2_5_omni.talker.engine import CodecTalkerEngine
from antiphon_testkit.conversations import conversation
from antiphon_testkit.drive_engine import run_segment
from tests.unit.services.qwen2_5_omni.talker.codec_talker_lab import GREEDY, Lab, Question, settings

TOKENS = 12
SAMPLING = replace(GREEDY, max_tokens=TOKENS)


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def launch_ahead(request: pytest.FixtureRequest) -> bool:
    ahead: bool = request.param
    return ahead


@pytest.fixture(scope="module")
def question(package_lab: Lab) -> Question:
    return package_lab.ask(
        conversation(("user", "find the number of days " * 40)), talker_max_tokens=TOKENS
    )


def spoken(
    engine: CodecTalkerEngine, question: Question, key: SegmentKey, row: int | None = None
) -> tuple[list[int], int]:
    """Codes, and how many rows were there; one `row` may be another."""
    chunks = question.chunks((50,))
    if row is not None:
        rows = question.prompt.copy()
        rows[row] *= -1
        chunks = [
            *question.prompt_chunks((50,), rows),
            *chunks[len(question.prompt_chunks((50,))) :],
        ]
    output = run_segment(engine, settings(sampling=SAMPLING), chunks, key)
    assert output.completed is not None
    found = output.tensors(CODES)["codes"][:, 0].tolist()
    return found, output.completed.input_cached_positions


def test_turn_goes_on_behind_the_rows_that_are_the_same(lab: Lab, question: Question) -> None:
    engine = lab.engine(slots=2)
    whole = len(question.prompt) // PART_ROWS * PART_ROWS
    truth = question.truth.codes.tolist()
    assert whole >= 2 * PART_ROWS
    assert spoken(engine, question, SegmentKey("talk", 0)) == (truth, 0)
    assert spoken(engine, question, SegmentKey("other", 0))[1] == 0
    # A first turn's slot is anybody's: now it is this session's.
    assert spoken(engine, question, SegmentKey("talk", 1)) == (truth, 0)
    assert spoken(engine, question, SegmentKey("other", 0))[1] == 0
    assert spoken(engine, question, SegmentKey("talk", 2)) == (truth, whole)
    changed, there = spoken(engine, question, SegmentKey("talk", 3), row=PART_ROWS + 2)
    assert there == PART_ROWS
    assert changed == spoken(lab.engine(), question, SegmentKey("fresh", 0), row=PART_ROWS + 2)[0]
    assert spoken(engine, question, SegmentKey("talk", 4)) == (truth, PART_ROWS)
