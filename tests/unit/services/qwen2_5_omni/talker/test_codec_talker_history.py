"""Speech that goes on from codes which its client has is the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.errors import InvalidArgument
from antiphon.pipelines.qwen2_5_omni import CODES
from antiphon.runtime.engine import SegmentSettings
from antiphon.values.history import History
from antiphon.values.sampling import Sampling
from antiphon.values.segment import SegmentKey
from antiphon_services.lm import frames as frames_module
from antiphon_services.qwen2_5_omni.talker.engine import CodecTalkerEngine
from antiphon_testkit.conversations import conversation
from antiphon_testkit.drive_engine import SegmentOutput, run_segment, run_segments
from antiphon_testkit.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint
from antiphon_testkit.qwen2_5_omni.tiny_shape import TinyOmni25Shape
from tests.unit.services.qwen2_5_omni.talker.codec_talker_lab import (
    GREEDY,
    SAMPLED,
    Lab,
    Question,
    settings,
    truth_codes,
)


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def launch_ahead(request: pytest.FixtureRequest) -> bool:
    ahead: bool = request.param
    return ahead


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "PART_ROWS", 16)


def going_on(codes: Sequence[int], sampling: Sampling = GREEDY) -> SegmentSettings:
    frames = np.array(codes, np.uint16).reshape(-1, 1)
    return replace(settings(sampling=sampling), history=History(frames=frames))


def codes_of(output: SegmentOutput) -> list[int]:
    assert output.failed is None, output.failed
    assert output.completed is not None
    codes: list[int] = output.tensors(CODES)["codes"][:, 0].tolist()
    assert output.completed.output_positions == len(codes)
    return codes


def steps_of(engine: CodecTalkerEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many ids each step draws one by one, from now on."""
    drawn: list[int] = []
    step = engine.model.step

    def counted(parts: Any, draws: Sequence[Any], known: Any = ()) -> Any:
        drawn.append(len(draws))
        return step(parts, draws, known)

    monkeypatch.setattr(engine.model, "step", counted)
    return drawn


def lengths(count: int) -> list[int]:
    return sorted({0, 1, 15, 16, 17, count - 1, count})


def check(engine: CodecTalkerEngine, question: Question, sampling: Sampling) -> None:
    """All codes are those of the undisturbed run, and how it ends, from wherever it goes on."""
    whole = run_segment(engine, settings(sampling=sampling), question.chunks())
    expected = codes_of(whole)
    for known in lengths(len(expected)):
        made = run_segment(engine, going_on(expected[:known], sampling), question.chunks((5, 1)))
        assert codes_of(made) == expected
        assert made.completed is not None
        assert whole.completed is not None
        # The second one finds parts of the prompt in its slot.
        found = made.completed.input_cached_positions
        assert made.completed == replace(whole.completed, input_cached_positions=found)


@pytest.mark.parametrize("sampling", [GREEDY, replace(SAMPLED, seed=5)], ids=["greedy", "sampled"])
def test_codes_go_on_as_they_would_have_been_drawn(
    lab: Lab, sampling: Sampling, monkeypatch: pytest.MonkeyPatch, launch_ahead: bool
) -> None:
    question = lab.ask(conversation(("user", "Count the days")))
    engine = lab.engine()
    check(engine, question, sampling)
    whole = codes_of(run_segment(engine, settings(sampling=sampling), question.chunks()))
    if sampling.greedy:
        assert whole == question.truth.codes.tolist()
    drawn = steps_of(engine, monkeypatch)
    run_segment(engine, going_on(whole, sampling), question.chunks())
    # An engine that launches ahead draws once more behind the end.
    assert sum(drawn) <= 1 + launch_ahead, "nothing but the end of speech is drawn by itself"


def test_codes_go_on_where_draws_among_them_were_no_codes(tmp_path: Path) -> None:
    build_tiny_checkpoint(tmp_path / "stray", TinyOmni25Shape(stray_codes=True))
    own = Lab(tmp_path / "stray")
    question = own.ask(conversation(("user", "Count the days")))
    assert len(own.codes(question.truth)) < len(truth_codes(question.truth, own.ids))
    engine = own.engine()
    check(engine, question, GREEDY)
    check(engine, question, replace(SAMPLED, seed=1))


def test_segments_go_on_in_company(lab: Lab) -> None:
    engine = lab.engine()
    questions = [lab.ask(conversation(("user", each))) for each in ("Count", "Who", "find the")]
    wholes = [
        codes_of(run_segment(engine, settings(), question.chunks())) for question in questions
    ]
    together = {
        SegmentKey("company", at): (going_on(whole[: at * 20]), question.chunks())
        for at, (question, whole) in enumerate(zip(questions, wholes, strict=True))
    }
    made = run_segments(engine, together)
    for output, whole in zip(made.values(), wholes, strict=True):
        assert codes_of(output) == whole


def test_history_is_refused_when_it_holds_what_cannot_be_drawn(lab: Lab) -> None:
    with pytest.raises(InvalidArgument) as caught:
        lab.engine().admit(SegmentKey("refused", 0), going_on([lab.ids.code_entries]))
    assert caught.value.field == "history.frames"
    engine, question = lab.engine(), lab.ask(conversation(("user", "Count")))
    engine.admit(SegmentKey("long", 0), going_on([1] * 4, replace(GREEDY, max_tokens=3)))
    with pytest.raises(InvalidArgument, match="at most 3"):
        engine.accept(SegmentKey("long", 0), question.chunks()[0])
