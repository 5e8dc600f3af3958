from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from antiphon.errors import Unavailable
from antiphon_tools.chaos.heard import TOLERANCE, Heard

EXPECTED = Heard(
    ids=[1, 2, 3],
    text="one two",
    codes=b"\x01\x02\x03\x04",
    samples=[np.linspace(-1, 1, 8, dtype=np.float32)],
)
LOST = Unavailable("it is gone")


def cut(text: int, codes: int, samples: int) -> Heard:
    """As much of it as came."""
    return Heard(
        EXPECTED.ids[:text],
        EXPECTED.text[:text],
        EXPECTED.codes[:codes],
        [EXPECTED.audio[:samples]],
    )


def test_the_same_is_heard_however_it_is_cut_into_pieces() -> None:
    pieces = replace(EXPECTED, samples=list(np.split(EXPECTED.audio, 4)))
    assert pieces.difference(EXPECTED) == ""
    near = replace(EXPECTED, samples=[EXPECTED.audio + np.float32(TOLERANCE / 2)])
    assert near.difference(EXPECTED) == ""


@pytest.mark.parametrize(
    "other",
    [
        replace(EXPECTED, ids=[1, 2, 4]),
        replace(EXPECTED, text="one too"),
        replace(EXPECTED, codes=b"\x01\x02\x03\x05"),
        replace(EXPECTED, samples=[EXPECTED.audio + np.float32(2 * TOLERANCE)]),
        replace(EXPECTED, samples=[EXPECTED.audio, EXPECTED.audio[-1:]]),
        cut(7, 4, 7),
        cut(7, 3, 8),
        cut(6, 4, 8),
    ],
)
def test_what_differs_is_told(other: Heard) -> None:
    assert other.difference(EXPECTED)


def test_an_answer_that_ended_with_an_error_is_a_beginning_of_the_expected_one() -> None:
    for count in range(4):
        begun = replace(cut(count, count, count), error=LOST)
        assert begun.difference(EXPECTED) == ""
    for other in (replace(EXPECTED, text="on3"), replace(EXPECTED, codes=b"\x01\x03")):
        assert replace(other, error=LOST).difference(EXPECTED)
