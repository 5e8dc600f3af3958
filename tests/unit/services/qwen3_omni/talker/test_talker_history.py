"""Speech that goes on from frames which its client has is the speech that would have been made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from antiphon.errors import InvalidArgument
from antiphon.runtime.engine import Emitted, InputChunk, SegmentSettings
from antiphon.values.history import History
from antiphon.values.segment import SegmentKey
from antiphon_services.lm import frames as frames_module
from antiphon_services.qwen3_omni.talker.engine import TalkerEngine
from antiphon_testkit.drive_engine import SegmentOutput, advance, run_segment, run_segments
from tests.unit.services.qwen3_omni.talker.talker_lab import GREEDY, SAMPLED, Lab, Turn, codes_of

PART_ROWS = 16
LONG = replace(SAMPLED, max_tokens=400, seed=2)
Codes = npt.NDArray[np.uint16]


@pytest.fixture(params=[False, True], ids=["in-turn", "ahead"])
def launch_ahead(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speech of a tiny checkpoint is short."""
    monkeypatch.setattr(frames_module, "PART_ROWS", PART_ROWS)


def going_on(turn: Turn, frames: Codes) -> SegmentSettings:
    return replace(turn.settings, history=History(frames=frames))


def apart(output: SegmentOutput) -> SegmentOutput:
    """The same with a frame in each event, as if all had been drawn."""
    emitted: list[Emitted] = []
    for each in output.emitted:
        frames = each.tensors.get("codes", np.empty((0, 0), np.uint16))
        emitted += [
            Emitted(each.key, each.edge, each.position + at, {"codes": frame[None]})
            for at, frame in enumerate(frames)
        ]
        if not len(frames):
            emitted.append(each)
    return SegmentOutput(emitted, output.completed, output.failed)


def steps_of(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many frames each step of the model draws, from now on."""
    assert isinstance(lab.stage.engine, TalkerEngine)
    drawn: list[int] = []
    step = lab.stage.engine.model.step

    def counted(chunks: Any, draws: Sequence[Any], known: Any = ()) -> Any:
        drawn.append(len(draws))
        return step(chunks, draws, known)

    monkeypatch.setattr(lab.stage.engine.model, "step", counted)
    return drawn


def lengths(count: int) -> list[int]:
    return sorted({0, 1, 2, count // 2, count - 1, count})


def check(lab: Lab, turn: Turn, frames: Codes, chunks: Sequence[InputChunk] | None = None) -> None:
    whole = run_segment(lab.stage.engine, turn.settings, turn.chunks())
    made = run_segment(lab.stage.engine, going_on(turn, frames), chunks or turn.chunks())
    assert codes_of(lab, apart(made)).tolist() == codes_of(lab, whole).tolist()
    assert made.completed is not None
    assert whole.completed is not None
    # The second one finds parts of the prompt in its slot.
    found = made.completed.input_cached_positions
    assert made.completed == replace(whole.completed, input_cached_positions=found)


@pytest.mark.parametrize("audio", [0, 7])
def test_codes_are_the_references_from_wherever_they_go_on(lab: Lab, audio: int) -> None:
    turn = lab.turn(1, audio=audio)
    expected = lab.reference(turn).codes
    for known in lengths(len(expected)):
        made = run_segment(
            lab.stage.engine, going_on(turn, expected[:known].astype(np.uint16)), turn.chunks()
        )
        assert codes_of(lab, apart(made)).tolist() == expected.tolist()
        assert made.completed is not None
        assert made.completed.finish_reason == lab.reference(turn).reason


def test_sampled_codes_go_on_as_they_would_have_been_drawn(
    small: Lab, monkeypatch: pytest.MonkeyPatch, *, launch_ahead: bool
) -> None:
    turn = replace(small.turn(5, audio=3), sampling=LONG)
    whole = codes_of(small, run_segment(small.stage.engine, turn.settings, turn.chunks()))
    assert len(whole) > 2 * PART_ROWS
    counts = [0, 1, PART_ROWS - 1, PART_ROWS, PART_ROWS + 1, 2 * PART_ROWS, len(whole)]
    for known in counts:
        check(small, turn, whole[:known])
    drawn = steps_of(small, monkeypatch)
    run_segment(small.stage.engine, going_on(turn, whole), turn.chunks())
    parts = -(-len(whole) // PART_ROWS)
    # The end of speech alone is drawn; who launches ahead draws once more, for nobody.
    assert sum(drawn) == 1 + launch_ahead
    assert len(drawn) <= parts + 2


def test_frames_leave_when_their_texts_have_come(small: Lab) -> None:
    """A thinker that makes its reply anew brings them one by one."""
    turn = small.turn(3, audio=7)
    whole = small.reference(turn).codes.astype(np.uint16)
    for known in (2, len(turn.reply) + 3):
        check(small, turn, whole[:known], [*turn.token_chunks(1), *turn.prompt_chunks(2)])
        check(small, turn, whole[:known], [*turn.prompt_chunks(2), *turn.token_chunks(1)])
    engine, key = small.stage.engine, SegmentKey("waits", 0)
    output = {key: SegmentOutput()}
    engine.admit(key, going_on(turn, whole[:6]))
    for chunk in turn.prompt_chunks():
        engine.accept(key, chunk)
    # The text of the prompt's last row, and of one less than the known frames behind it.
    tokens = InputChunk("tokens", 0, {"ids": turn.reply[:4]})
    engine.accept(key, tokens)
    advance(engine, output)
    assert (output[key].emitted, engine.awaited_edge(key)) == ([], "tokens")
    engine.accept(key, InputChunk("tokens", 4, {"ids": turn.reply[4:]}))
    engine.accept(key, InputChunk("tokens", len(turn.reply), {}, segment_finished=True))
    advance(engine, output)
    assert codes_of(small, apart(output[key])).tolist() == whole.tolist()


def test_segments_go_on_in_company(small: Lab) -> None:
    turns = [small.turn(at, audio=at % 3) for at in range(3)]
    turns.append(replace(small.turn(5, audio=3), sampling=LONG))
    wholes = [
        codes_of(small, run_segment(small.stage.engine, turn.settings, turn.chunks()))
        for turn in turns
    ]
    known = [0, 5, len(wholes[2]), PART_ROWS + 3]
    together = {
        SegmentKey("company", at): (going_on(turn, whole[: known[at]]), turn.chunks())
        for at, (turn, whole) in enumerate(zip(turns, wholes, strict=True))
    }
    made = run_segments(small.stage.engine, together)
    for output, whole in zip(made.values(), wholes, strict=True):
        assert codes_of(small, apart(output)).tolist() == whole.tolist()


def test_history_is_refused_when_it_holds_what_cannot_be_drawn(small: Lab) -> None:
    turn = small.turn(1)
    frames = small.reference(turn).codes[:3].astype(np.uint16)
    stop, late = frames.copy(), frames.copy()
    stop[1, 0] = small.stage.engine.model.stop_code  # type: ignore[attr-defined]
    late[2, -1] = small.stage.facts.code_entries
    key = SegmentKey("refused", 0)
    for wrong in (stop, late, frames[:, :-1], np.full_like(frames, 65535)):
        with pytest.raises(InvalidArgument) as caught:
            small.stage.engine.admit(key, going_on(turn, wrong))
        assert caught.value.field == "history.frames"


def test_history_is_refused_when_it_is_longer_than_the_segment_may_be(small: Lab) -> None:
    turn = small.turn(1)
    frames = small.reference(turn).codes[:6].astype(np.uint16)
    engine, key = small.stage.engine, SegmentKey("refused", 1)
    settings = going_on(replace(turn, sampling=replace(GREEDY, max_tokens=6)), frames)
    engine.admit(key, settings)
    with pytest.raises(
        InvalidArgument, match="has 6 frames, but the segment can have at most 5"
    ) as caught:
        engine.accept(key, turn.chunks()[0])
    assert caught.value.field == "history.frames"
    engine.release(key)
