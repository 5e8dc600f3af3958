"""Greedy codes equal Hugging Face's where the user shows images and videos."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from antiphon.runtime.engine import Engine
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.frames import PART_ROWS
from antiphon_services.lm.graphs import Eager
from antiphon_testkit.drive_engine import run_segment, run_segments
from tests.unit.services.qwen3_omni.talker.talker_lab import (
    NEWLINE,
    Lab,
    Turn,
    codes_of,
    make_late_engine,
)

Content = Callable[[Lab, int], list[int]]


def shown(lab: Lab, id_: int, grid: tuple[int, int, int]) -> list[int]:
    """An image or a video among words, as the chat template puts it."""
    config = lab.model.config.thinker_config
    count = grid[0] * grid[1] * grid[2]
    return [config.vision_start_token_id, *[id_] * count, config.vision_end_token_id]


IMAGE, WIDE, LARGE, VIDEO = (1, 4, 3), (1, 2, 9), (1, 9, 11), (3, 4, 5)
STEPS = {IMAGE: 1, WIDE: 1, LARGE: 1, VIDEO: 13}


def turn_with(lab: Lab, *messages: tuple[tuple[int, int, int], ...], words: int = 4) -> Turn:
    """A turn with decided choices, whose user messages show these grids between words."""
    special = lab.special

    def prompt(seed: int) -> list[int]:
        ids = lab.segment(8, lab.text(seed, 5))
        for number, grids in enumerate(messages):
            content = lab.text(seed + 10 * number, words)
            for grid in grids:
                id_ = special.video if grid[0] > 1 else special.image
                content += shown(lab, id_, grid) + lab.text(seed + 10 * number + 1, 3)
            ids += lab.segment(special.user, content)
            if number + 1 < len(messages):
                ids += lab.segment(special.assistant, lab.text(seed + 5, 3))
        return [*ids, special.im_start, special.assistant, NEWLINE]

    grids = tuple(itertools.chain(*messages))
    steps = tuple(STEPS[grid] for grid in grids)

    def turns() -> Iterator[Turn]:
        for seed in itertools.count(0, 100):
            reply = lab.text(seed + 3, 7)
            yield lab.make_turn(prompt(seed), reply, seed, grids=grids, steps=steps)

    return lab.decided(turns())


CASES: dict[str, tuple[tuple[tuple[int, int, int], ...], ...]] = {
    "image": ((IMAGE,),),
    "two": ((IMAGE, WIDE),),
    "video": ((VIDEO,),),
    "both": ((VIDEO, IMAGE),),
    "first turn": ((WIDE,), ()),
    "both turns": ((IMAGE, VIDEO), (WIDE,)),
}


@pytest.mark.parametrize("name", CASES)
def test_codes_equal_the_reference_when_something_is_shown(small: Lab, name: str) -> None:
    turn = turn_with(small, *CASES[name])
    output = run_segment(small.stage.engine, turn.settings, turn.chunks())
    assert codes_of(small, output).tolist() == small.reference(turn).codes.tolist()


def test_codes_equal_the_reference_when_an_image_crosses_chunks(small: Lab) -> None:
    turn = turn_with(small, (LARGE,), words=90)
    assert PART_ROWS in range(90, 90 + 99)
    output = run_segment(small.stage.engine, turn.settings, turn.chunks())
    assert codes_of(small, output).tolist() == small.reference(turn).codes.tolist()


ENGINES: dict[str, Callable[[Lab], Engine]] = {
    "in turn": lambda lab: lab.stage.engine,
    "ahead": lambda lab: lab.ahead.stage.engine,
    "ahead in buckets": lambda lab: make_late_engine(lab, 6, Eager)[0],
}


@pytest.mark.parametrize("name", ENGINES)
def test_codes_stay_the_same_when_some_see_and_others_do_not(small: Lab, name: str) -> None:
    turns = [
        turn_with(small, *CASES["both turns"]),
        small.turn(1, audio=4),
        turn_with(small, *CASES["video"]),
        small.turn(2),
    ]
    outputs = run_segments(
        ENGINES[name](small),
        {
            SegmentKey(f"company {at}", 0): (turn.settings, turn.chunks())
            for at, turn in enumerate(turns)
        },
    )
    for turn, output in zip(turns, outputs.values(), strict=True):
        assert codes_of(small, output).tolist() == small.reference(turn).codes.tolist()


def test_a_slot_forgets_what_was_seen_when_it_is_taken_again(small: Lab) -> None:
    for turn in (turn_with(small, *CASES["video"]), small.turn(3)):
        output = run_segment(small.stage.engine, turn.settings, turn.chunks())
        assert codes_of(small, output).tolist() == small.reference(turn).codes.tolist()
