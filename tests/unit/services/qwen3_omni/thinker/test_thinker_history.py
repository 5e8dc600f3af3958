"""A reply that goes on from ids which its client has is the one that would have been made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from antiphon.errors import ErrorCode, InvalidArgument
from antiphon.runtime.engine import InputChunk, LoadedStage, SegmentSettings
from antiphon.values.conversation import Conversation
from antiphon.values.history import History
from antiphon.values.segment import SegmentKey
from antiphon_services.thinker.engine import PREFILL_ROWS, ThinkerEngine
from antiphon_services.thinker.model import Fed, ThinkerFeed
from antiphon_testkit.drive_engine import SegmentOutput, run_segment, run_segments
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import (
    AUDIO,
    SPEECH,
    TEXT,
    TURNS,
    segment,
)
from tests.unit.services.qwen3_omni.thinker.thinker_reference import Cases

SAMPLED = {"temperature": 0.9, "top_k": 0, "seed": 7, "repetition_penalty": 1.3}


@pytest.fixture
def engine(stage: LoadedStage) -> ThinkerEngine:
    assert isinstance(stage.engine, ThinkerEngine)
    stage.engine.forget()
    return stage.engine


def ids_of(output: SegmentOutput) -> list[int]:
    assert output.failed is None, output.failed
    ids: list[int] = output.tensors("text")["ids"].tolist()
    return ids


def going_on(
    asked: tuple[SegmentSettings, list[InputChunk]], ids: Sequence[int]
) -> tuple[SegmentSettings, list[InputChunk]]:
    settings, chunks = asked
    return replace(settings, history=History(ids=np.array(ids, np.int32))), chunks


def check_alike(made: SegmentOutput, whole: SegmentOutput) -> None:
    """All that leaves is the same, in whatever pieces."""
    assert ids_of(made) == ids_of(whole)
    assert made.completed is not None
    assert whole.completed is not None
    assert replace(made.completed, key=whole.completed.key, input_cached_positions=0) == replace(
        whole.completed, input_cached_positions=0
    )
    for edge in SPEECH:
        assert made.finish_reason(edge) == whole.finish_reason(edge)
        ours, theirs = made.tensors(edge), whole.tensors(edge)
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"rows"}:
            np.testing.assert_array_equal(ours[name], theirs[name])
        if "rows" in ours:
            np.testing.assert_allclose(ours["rows"], theirs["rows"], rtol=0, atol=1e-4)
        counts = [len(each.tensors.get("ids", ())) for each in made.emitted if each.edge == edge]
        starts = [each.position for each in made.emitted if each.edge == edge and each.tensors]
        if edge != "prompt":
            assert starts == np.cumsum([0, *counts])[: len(starts)].tolist()


def lengths(count: int) -> list[int]:
    """None, one, some, all but the last and all of it."""
    return sorted({0, 1, 2, count // 2, count - 1, count})


def count_feeds(engine: ThinkerEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that each sequence brought to each forward from now on."""
    rows: list[int] = []
    forward = engine.model.forward

    def counted(feeds: Sequence[ThinkerFeed]) -> list[Fed]:
        rows.extend(len(each.ids) for each in feeds)
        return forward(feeds)

    monkeypatch.setattr(engine.model, "forward", counted)
    return rows


def test_reply_is_the_references_from_wherever_it_goes_on(
    engine: ThinkerEngine, cases: Cases
) -> None:
    for asked, expected in cases[:: len(cases) // 3]:
        whole = run_segment(engine, *segment(asked))
        assert ids_of(whole) == expected.ids
        for known in lengths(len(expected.ids)):
            engine.forget()
            check_alike(run_segment(engine, *going_on(segment(asked), expected.ids[:known])), whole)


@pytest.mark.parametrize(
    "sampling",
    [SAMPLED, {**SAMPLED, "stop": ("e", "o t")}, {**SAMPLED, "max_tokens": 9}],
)
def test_sampled_reply_goes_on_as_it_would_have(
    engine: ThinkerEngine, sampling: dict[str, Any]
) -> None:
    asked = segment(AUDIO[2], **sampling)
    whole = run_segment(engine, *asked)
    for known in lengths(len(ids_of(whole))):
        engine.forget()
        check_alike(run_segment(engine, *going_on(asked, ids_of(whole)[:known])), whole)


def test_known_ids_are_prefilled_and_not_decoded(
    engine: ThinkerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = segment(TEXT[4], **SAMPLED, max_tokens=600)
    whole = run_segment(engine, *asked)
    ids = ids_of(whole)
    assert len(ids) > 100
    engine.forget()
    rows = count_feeds(engine, monkeypatch)
    known = len(ids) - 3
    check_alike(run_segment(engine, *going_on(asked, ids[:known])), whole)
    assert whole.completed is not None
    prefilled = whole.completed.input_positions + known - 1
    assert sum(each > 1 for each in rows) <= -(-prefilled // PREFILL_ROWS) + 1
    # The last known id is sampled again, and so is what follows; the very last is not fed.
    assert rows.count(1) <= 3


def test_what_is_known_is_found_where_it_was_made(
    engine: ThinkerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another stage was lost: the thinker has the reply in its slot."""
    asked = segment(AUDIO[1], **SAMPLED)
    whole = run_segment(engine, *asked)
    rows = count_feeds(engine, monkeypatch)
    check_alike(run_segment(engine, *going_on(asked, ids_of(whole))), whole)
    assert rows == [1]


def test_segments_go_on_in_company(engine: ThinkerEngine) -> None:
    asked: list[tuple[Conversation, dict[str, Any]]] = [
        (AUDIO[0], {}),
        (TEXT[1], SAMPLED),
        (TURNS[0], SAMPLED),
        (AUDIO[2], {}),
    ]
    wholes = [run_segment(engine, *segment(each, **settings)) for each, settings in asked]
    engine.forget()
    together = {
        SegmentKey("company", at): going_on(segment(each, **settings), ids_of(whole)[: at * 9])
        for at, ((each, settings), whole) in enumerate(zip(asked, wholes, strict=True))
    }
    for made, whole in zip(run_segments(engine, together).values(), wholes, strict=True):
        check_alike(made, whole)


def test_log_probabilities_are_all_made_anew(engine: ThinkerEngine) -> None:
    asked = segment(TEXT[0], top_logprobs=2)
    whole = run_segment(engine, *asked)
    engine.forget()
    again = run_segment(engine, *going_on(asked, ids_of(whole)[:20]))
    assert ids_of(again) == ids_of(whole)
    assert len(again.tensors("text")["logprobs"]) == len(whole.tensors("text")["logprobs"])


@pytest.mark.parametrize("wrong", [-1, 1 << 30])
def test_history_is_refused_when_an_id_is_in_no_vocabulary(
    small_stage: LoadedStage, wrong: int
) -> None:
    asked, _ = going_on(segment(TEXT[0]), [1, wrong])
    with pytest.raises(InvalidArgument) as caught:
        small_stage.engine.admit(SegmentKey("refused", 0), asked)
    assert caught.value.field == "history.ids"


@pytest.mark.parametrize("sampling", [{}, {"max_tokens": 3}])
def test_history_fails_when_it_goes_on_behind_the_end(
    small_stage: LoadedStage, sampling: dict[str, Any]
) -> None:
    stop = 3 if sampling else small_stage.engine.intake.stop_id  # type: ignore[attr-defined]
    asked = going_on(segment(TEXT[0], **sampling), [5, 4, stop, 5, 4])
    made = run_segment(small_stage.engine, *asked)
    assert made.failed is not None
    assert made.failed.error.code is ErrorCode.INVALID_ARGUMENT
    assert made.failed.error.field == "history.ids"
