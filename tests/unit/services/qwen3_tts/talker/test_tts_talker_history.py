"""Speech that goes on from frames which its client has is the recorded one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from antiphon.errors import InvalidArgument
from antiphon.runtime.engine import Emitted
from antiphon.values.history import History
from antiphon.values.segment import SegmentKey
from antiphon_services.lm import frames as frames_module
from antiphon_services.lm.readback import PendingDraw
from antiphon_services.qwen3_tts.talker.engine import TtsTalkerEngine
from antiphon_services.qwen3_tts.talker.talker import TtsTurn
from antiphon_testkit.drive_engine import SegmentOutput
from tests.unit.services.qwen3_tts.talker.tts_talker_lab import (
    CASES,
    GREEDY,
    SAMPLED,
    Asked,
    Lab,
    frames_of,
)

# Of each aspect, one in each mode.
ASKED = {
    aspect: [
        next(each for name, each in CASES.items() if name.startswith(aspect) and mode in name)
        for mode in ("whole", "trailing")
    ]
    for aspect in ("instruction", "vector", "codes")
}


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def launch_ahead(request: pytest.FixtureRequest) -> bool:
    ahead: bool = request.param
    return ahead


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "PART_ROWS", 4)


def going_on(asked: Asked, frames: Sequence[Sequence[int]], groups: int) -> Asked:
    settings, chunks = asked
    known = np.array(frames, np.uint16).reshape(len(frames), groups)
    return replace(settings, history=History(frames=known)), chunks


def apart(output: SegmentOutput) -> SegmentOutput:
    """The same with a frame in each event, as if all had been drawn."""
    emitted: list[Emitted] = []
    for each in output.emitted:
        frames = each.tensors.get("codes", np.empty((0, 0), np.uint16))
        if each.prime or not len(frames):
            emitted.append(each)
            continue
        emitted += [
            Emitted(each.key, each.edge, each.position + at, {"codes": frame[None]})
            for at, frame in enumerate(frames)
        ]
    return SegmentOutput(emitted, output.completed, output.failed)


@pytest.mark.parametrize("aspect", ASKED)
def test_frames_are_the_recorded_ones_from_wherever_they_go_on(
    labs: dict[str, Lab], aspect: str
) -> None:
    for case in ASKED[aspect]:
        lab = labs[case.kind]
        groups = lab.facts.code_groups
        expected = lab.expected(case)
        counts = sorted({0, 1, 4, 5, len(expected) - 1, len(expected)})
        asked = [going_on(lab.ask(case), expected[:known], groups) for known in counts]
        for output in lab.speak(*asked[: len(asked) // 2]) + lab.speak(*asked[len(asked) // 2 :]):
            assert frames_of(apart(output)) == expected


def test_sampled_frames_go_on_as_they_would_have_been_drawn(
    labs: dict[str, Lab], monkeypatch: pytest.MonkeyPatch, launch_ahead: bool
) -> None:
    lab = labs["custom_voice"]
    groups, ask = lab.facts.code_groups, partial(lab.ask, CASES["voice-0-whole"])
    seeds = (replace(SAMPLED, seed=seed, max_tokens=20) for seed in range(20))
    answers = ((each, frames_of(lab.speak(each)[0])) for each in map(ask, seeds))
    # Not one whose stop code is drawn early.
    asked, expected = next(each for each in answers if len(each[1]) > 6)
    drawn: list[bool] = []
    assert isinstance(lab.engine, TtsTalkerEngine)
    step = lab.engine.model.step

    def counted(turns: Sequence[TtsTurn]) -> list[PendingDraw | None]:
        drawn.extend(turn.draw is not None for turn in turns)
        return step(turns)

    monkeypatch.setattr(lab.engine.model, "step", counted)
    for known in range(len(expected) + 1):
        drawn.clear()
        [made] = lab.speak(going_on(asked, expected[:known], groups))
        assert frames_of(apart(made)) == expected
        # An engine that launches ahead draws once more behind the end.
        assert sum(drawn) == len(expected) - known + 1 + launch_ahead


def test_history_is_refused_when_it_holds_what_cannot_be_drawn(labs: dict[str, Lab]) -> None:
    lab = labs["custom_voice"]
    asked = lab.ask(CASES["voice-0-whole"], GREEDY)
    groups = lab.facts.code_groups
    for wrong in ([[lab.engine.model.ids.stop] + [0] * (groups - 1)], [[65535] * groups]):
        settings, _ = going_on(asked, wrong, groups)
        with pytest.raises(InvalidArgument) as caught:
            lab.engine.admit(SegmentKey("refused", 0), settings)
        assert caught.value.field == "history.frames"
