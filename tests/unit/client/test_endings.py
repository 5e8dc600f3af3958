"""The end of a call is remembered without what has led to it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from antiphon.client.endings import Ending
from antiphon.errors import ERROR_BY_CODE, AntiphonError, ErrorCode, InvalidArgument, Unavailable


class Held:
    """Something in a frame of a caller."""


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def fail(ending: Ending) -> weakref.ref[Held]:
    held = Held()
    try:
        try:
            raise ValueError("the cause")
        except ValueError as cause:
            raise Unavailable("it is away") from cause
    except Unavailable as error:
        ending.set(error)
    return weakref.ref(held)


def failure(ending: Ending) -> AntiphonError:
    with pytest.raises(AntiphonError) as raised:
        ending.check()
    return raised.value


def read(ending: Ending) -> weakref.ref[Held]:
    held = Held()
    try:
        ending.check()
    except AntiphonError:
        return weakref.ref(held)
    raise AssertionError("it has not failed")


@pytest.mark.usefixtures("no_collection")
def test_an_end_keeps_no_frames_of_who_has_met_it() -> None:
    ending = Ending()
    assert fail(ending)() is None
    assert read(ending)() is None
    assert isinstance(failure(ending).__cause__, ValueError)


@pytest.mark.parametrize("code", ErrorCode)
def test_each_reader_gets_its_own_copy(code: ErrorCode) -> None:
    ending = Ending()
    error = ERROR_BY_CODE[code](
        "it failed", field="voice", stage="talker", edge="codes", retry_after_s=2.0
    )
    ending.set(error)
    one, other = failure(ending), failure(ending)
    assert one is not other
    assert type(one) is type(error)
    assert vars(one) == vars(other) == vars(error)
    assert str(one) == "it failed"


def test_only_the_first_end_counts() -> None:
    ending = Ending()
    assert not ending.is_set
    ending.set(None)
    too_late = InvalidArgument("too late")
    assert str(ending.fail(too_late)) == "too late"
    assert ending.is_set
    ending.check()


def test_who_fails_a_call_learns_with_which_error_it_has_ended() -> None:
    ending = Ending()
    assert isinstance(ending.fail(Unavailable("the first")), Unavailable)
    assert str(ending.fail(InvalidArgument("too late"))) == "the first"
    assert str(failure(ending)) == "the first"
