"""A reply that goes on from ids which its client has brings the rows of all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from antiphon.values.history import History
from antiphon.values.segment import SegmentKey
from antiphon_services.thinker.engine import ThinkerEngine
from antiphon_testkit.drive_engine import SegmentOutput, run_segment, run_segments
from tests.unit.services.qwen2_5_omni.thinker.omni25_thinker_lab import (
    CONVERSATIONS,
    MAX_TOKENS,
    Answer,
    assert_equal,
    ids_of,
    segment,
)


def gone_on(engine: ThinkerEngine, wanted: Answer, known: int) -> SegmentOutput:
    settings, chunks = segment(wanted.asked)
    ids = np.array(wanted.truth.text_ids[:known], np.int32)
    return run_segment(engine, replace(settings, history=History(ids=ids)), chunks)


@pytest.mark.parametrize("name", ["other text", "recording", "images", "all"])
def test_reply_and_its_rows_are_the_references_from_wherever_it_goes_on(
    engine: ThinkerEngine, answers: dict[str, Answer], name: str
) -> None:
    count = len(answers[name].truth.text_ids)
    for known in sorted({1, 2, count // 2, count - 1, count}):
        engine.forget()
        assert_equal(gone_on(engine, answers[name], known), answers[name])


def test_rows_of_what_is_known_come_from_the_slot_that_has_them(
    engine: ThinkerEngine, answers: dict[str, Answer]
) -> None:
    for wanted in answers.values():
        run_segment(engine, *segment(wanted.asked))
        made = gone_on(engine, wanted, MAX_TOKENS)
        assert made.completed is not None
        assert_equal(made, wanted)
        assert made.completed.input_cached_positions >= made.completed.input_positions


def test_segments_go_on_in_company(engine: ThinkerEngine, answers: dict[str, Answer]) -> None:
    together = {}
    for at, (name, wanted) in enumerate(answers.items()):
        settings, chunks = segment(CONVERSATIONS[name][0])
        ids = np.array(wanted.truth.text_ids[: at * 3], np.int32)
        together[SegmentKey(name, 0)] = replace(settings, history=History(ids=ids)), chunks
    made = run_segments(engine, together)
    for name, wanted in answers.items():
        assert ids_of(made[SegmentKey(name, 0)]) == wanted.truth.text_ids.tolist()
        assert_equal(made[SegmentKey(name, 0)], wanted)
