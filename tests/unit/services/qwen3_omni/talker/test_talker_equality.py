"""Greedy codes equal Hugging Face's, however and whenever the input comes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, count, zip_longest
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from antiphon.runtime.engine import InputChunk
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_testkit.drive_engine import run_segment, run_segments
from tests.unit.services.qwen3_omni.talker.talker_lab import (
    GREEDY,
    LEAST_MARGIN,
    NEWLINE,
    SAMPLED,
    Lab,
    Reference,
    Turn,
    codes_of,
    run_reference,
)

Schedule = Callable[[Turn], Sequence[InputChunk]]


@pytest.fixture(params=[False, True], ids=["in-turn", "ahead"])
def launch_ahead(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def prompt_first(turn: Turn) -> Sequence[InputChunk]:
    return turn.prompt_chunks() + turn.token_chunks()


def piece_by_piece(turn: Turn) -> Sequence[InputChunk]:
    return turn.prompt_chunks(rows_per_chunk=2) + turn.token_chunks(per_chunk=1)


def tokens_first(turn: Turn) -> Sequence[InputChunk]:
    return turn.token_chunks() + turn.prompt_chunks(rows_per_chunk=3)


def alternating(turn: Turn) -> Sequence[InputChunk]:
    pairs = zip_longest(turn.prompt_chunks(rows_per_chunk=2), turn.token_chunks(per_chunk=2))
    return [chunk for chunk in chain.from_iterable(pairs) if chunk is not None]


def check(lab: Lab, turn: Turn, chunks: Sequence[InputChunk] | None = None) -> Reference:
    reference = lab.reference(turn)
    assert reference.margin >= LEAST_MARGIN
    output = run_segment(lab.stage.engine, turn.settings, chunks or turn.chunks())
    assert codes_of(lab, output).tolist() == reference.codes.tolist()
    assert output.completed is not None
    assert output.completed.finish_reason == reference.reason
    return reference


@pytest.mark.parametrize("audio", [0, 7])
@pytest.mark.parametrize("schedule", [prompt_first, piece_by_piece, tokens_first, alternating])
def test_codes_equal_hugging_face_when_input_comes_in_any_order(
    lab: Lab, schedule: Schedule, audio: int
) -> None:
    turn = lab.turn(1, audio=audio)
    check(lab, turn, schedule(turn))


def test_codes_equal_hugging_face_when_the_whole_model_generates(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Reference] = []

    def generate(**keywords: Any) -> Any:
        monkeypatch.undo()
        reference, result = run_reference(lab.model, **keywords)
        found.append(reference)
        return result

    for seed in count():
        prompt = lab.question(seed, audio=0)
        monkeypatch.setattr(lab.model.talker, "generate", generate)
        ids, _ = lab.model.generate(
            torch.tensor([prompt]),
            thinker_eos_token_id=lab.special.im_end,
            thinker_max_new_tokens=12,
            talker_max_new_tokens=25,
            talker_do_sample=False,
        )
        if found[-1].margin >= LEAST_MARGIN and len(found[-1].codes) > 5:
            break
    # The last sampled token has no row, whether it is a stop or was cut.
    reply = ids[0, len(prompt) : -1].tolist()
    turn = lab.make_turn(prompt, reply, sampling=replace(GREEDY, max_tokens=25))
    lab.known[turn] = found[-1]
    check(lab, turn)


def test_codes_equal_hugging_face_when_there_are_many_turns(lab: Lab) -> None:
    def prompt(seed: int) -> list[int]:
        special = lab.special
        first = lab.segment(special.user, [special.audio] * 3 + lab.text(seed, 4))
        return first + lab.segment(special.assistant, lab.text(seed + 1, 6)) + lab.question(seed, 5)

    turns = (lab.make_turn(prompt(seed), lab.text(seed, 6), seed) for seed in count(50))
    turn = lab.decided(turns)
    assert len(turn.rows) == 8
    check(lab, turn, piece_by_piece(turn))


@pytest.mark.parametrize("known", [-1, 1, 2, 5])
def test_codes_equal_hugging_face_when_the_prompt_begins_the_answer(lab: Lab, known: int) -> None:
    def make_turn(seed: int) -> Turn:
        prompt, reply = lab.question(seed, audio=2), lab.text(seed, 9)
        if known < 0:
            return lab.make_turn(prompt[:known], [NEWLINE, *reply], seed)
        return lab.make_turn(prompt + reply[:known], reply[known:], seed)

    turn = lab.decided(make_turn(seed) for seed in count(70))
    check(lab, turn, piece_by_piece(turn))


def test_codes_equal_hugging_face_when_no_user_has_spoken(lab: Lab) -> None:
    header = [lab.special.im_start, lab.special.assistant, NEWLINE]
    turn = lab.decided(lab.make_turn(header, lab.text(seed, 5)) for seed in count(10))
    check(lab, turn)


def test_codes_equal_hugging_face_when_the_prompt_takes_several_steps(small: Lab) -> None:
    turn = small.turn(5, audio=1100, sampling=replace(GREEDY, max_tokens=6))
    check(small, turn, turn.prompt_chunks(rows_per_chunk=700) + turn.token_chunks())


@pytest.mark.parametrize("reply", [1, 2])
def test_codes_equal_hugging_face_when_the_reply_is_very_short(lab: Lab, reply: int) -> None:
    turn = lab.turn(9, reply=reply)
    check(lab, turn, piece_by_piece(turn))


@pytest.mark.parametrize("voice", ["chelsie", "ethan", "aiden"])
def test_codes_equal_hugging_face_when_each_voice_speaks(lab: Lab, voice: str) -> None:
    turn = lab.turn(4, voice=voice)
    check(lab, turn)
    others = {"chelsie", "ethan", "aiden"} - {voice}
    assert all(
        lab.reference(replace(turn, voice=each)).codes.tolist()
        != lab.reference(turn).codes.tolist()
        for each in others
    )


@pytest.mark.parametrize("max_tokens", [2, 5])
def test_codes_equal_hugging_face_when_the_limit_cuts_them(lab: Lab, max_tokens: int) -> None:
    turn = lab.turn(6, sampling=replace(GREEDY, max_tokens=max_tokens))
    reference = check(lab, turn)
    assert len(reference.codes) == max_tokens - 1
    assert reference.reason is FinishReason.LENGTH


def test_codes_equal_hugging_face_when_speech_ends_by_itself(small: Lab) -> None:
    limit = replace(GREEDY, max_tokens=80)
    turn = small.decided(
        turn
        for seed in count(20, 1)
        if small.reference(turn := small.turn(seed, sampling=limit)).reason is FinishReason.STOP
    )
    reference = check(small, turn)
    assert len(reference.codes) > 0
    # A limit that ends on the stop code is a stop, and takes no frame away.
    exact = replace(turn, sampling=replace(GREEDY, max_tokens=len(reference.codes) + 1))
    assert check(small, exact).reason is FinishReason.STOP


def test_codes_equal_hugging_face_when_rows_are_bfloat16(lab: Lab) -> None:
    plain = lab.turn(8, audio=5)
    rows = plain.rows.astype(ml_dtypes.bfloat16)
    rounded = replace(plain, rows=rows.astype(np.float32))
    assert lab.reference(rounded).margin >= LEAST_MARGIN
    output = run_segment(lab.stage.engine, plain.settings, replace(plain, rows=rows).chunks())
    assert codes_of(lab, output).tolist() == lab.reference(rounded).codes.tolist()


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_codes_equal_those_alone_when_sessions_interleave(lab: Lab, sampling: Any) -> None:
    turns = [
        lab.turn(seed, audio=audio, sampling=replace(sampling, seed=seed))
        for seed, audio in ((11, 0), (12, 6), (13, 2), (14, 0))
    ]
    engine = lab.stage.engine
    alone = [codes_of(lab, run_segment(engine, turn.settings, turn.chunks())) for turn in turns]
    schedules = (prompt_first, piece_by_piece, tokens_first, alternating)
    together = run_segments(
        engine,
        {
            SegmentKey(f"session {index}", index): (turn.settings, schedule(turn))
            for index, (turn, schedule) in enumerate(zip(turns, schedules, strict=True))
        },
    )
    for expected, output in zip(alone, together.values(), strict=True):
        assert codes_of(lab, output).tolist() == expected.tolist()
    assert len({codes.tobytes() for codes in alone}) == len(turns)
