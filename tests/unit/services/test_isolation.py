"""Who fails when a call for many does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from antiphon.errors import Internal, ResourceExhausted
from antiphon.runtime.engine import EngineEvent, Failed
from antiphon.values.segment import SegmentKey
from antiphon_services.stage.isolation import alone, together

KEY = SegmentKey("s", 0)
LOST = "CUDA error: an illegal memory access was encountered"


class Halves:
    """Halves numbers, as long as they are even; counts its calls."""

    def __init__(self, fault: str = "an odd number") -> None:
        self.calls: list[list[int]] = []
        self._fault = fault

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.calls.append(list(numbers))
        if any(number % 2 for number in numbers):
            raise RuntimeError(self._fault)
        return [number // 2 for number in numbers]


def test_together_makes_one_call_when_it_succeeds() -> None:
    halves = Halves()
    assert [result() for result in together(halves, [2, 4, 6])] == [1, 2, 3]
    assert halves.calls == [[2, 4, 6]]


def test_together_leaves_the_fault_to_the_one_whose_it_is() -> None:
    halves = Halves()
    two, three, four = together(halves, [2, 3, 4])
    assert (four(), two()) == (2, 1)
    with pytest.raises(RuntimeError, match="odd"):
        three()
    assert halves.calls == [[2, 3, 4], [4], [2], [3]]


def test_together_tries_nobody_alone_when_the_device_is_lost() -> None:
    halves = Halves(LOST)
    with pytest.raises(RuntimeError, match="illegal"):
        together(halves, [2, 3])
    assert halves.calls == [[2, 3]]


@pytest.mark.parametrize("error", [ResourceExhausted("no room"), ValueError("no voice")])
def test_alone_fails_the_segment_after_its_end(error: Exception) -> None:
    events: list[EngineEvent] = []
    ended: list[int] = []
    with alone(KEY, events, lambda: ended.append(len(events))):
        raise error
    (failed,) = events
    assert ended == [0]
    assert isinstance(failed, Failed)
    assert failed.key == KEY
    if isinstance(error, ResourceExhausted):
        assert failed.error is error
    else:
        assert isinstance(failed.error, Internal)
        assert "ValueError: no voice" in failed.error.message
        assert failed.error.__cause__ is error
    # Its frames hold the batch.
    assert error.__traceback__ is None


def test_alone_says_nothing_when_nothing_goes_wrong() -> None:
    events: list[EngineEvent] = []
    with alone(KEY, events, lambda: pytest.fail("ended")):
        pass
    assert not events
