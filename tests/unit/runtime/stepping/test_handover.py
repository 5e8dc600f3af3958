from __future__ import annotations

import queue
import threading

import pytest

from antiphon.errors import Internal
from antiphon.runtime.engine import Emitted
from antiphon.runtime.session.facts import EngineStepped
from antiphon.runtime.stepping.handover import Handover
from antiphon.values.segment import SegmentKey

TIMEOUT_S = 120.0


def batch(number: int) -> EngineStepped:
    return EngineStepped((Emitted(SegmentKey("s", 0), "audio", number),))


class Posted:
    """Positions of the batches that have been posted, and on which thread."""

    def __init__(self) -> None:
        self.batches: queue.Queue[tuple[EngineStepped, str]] = queue.Queue()

    def __call__(self, posted: EngineStepped) -> None:
        self.batches.put((posted, threading.current_thread().name))

    def next(self) -> tuple[int, str]:
        posted, thread = self.batches.get(timeout=TIMEOUT_S)
        (event,) = posted.events
        assert isinstance(event, Emitted)
        return event.position, thread


def handover_threads() -> set[threading.Thread]:
    """Those of this process; earlier tests may have left some that end now."""
    return {each for each in threading.enumerate() if each.name == "handover"}


def test_batch_goes_on_at_once_and_no_thread_is_started_when_nothing_has_to_wait() -> None:
    posted = Posted()
    handover = Handover(posted)
    before = handover_threads()
    for number in range(3):
        handover.put(batch(number), None)
    here = threading.current_thread().name
    assert [posted.next() for _ in range(3)] == [(number, here) for number in range(3)]
    assert handover_threads() <= before
    handover.close()


def test_batches_keep_their_order_when_some_have_to_wait_and_the_caller_does_not() -> None:
    posted = Posted()
    handover = Handover(posted)
    copied = threading.Event()
    handover.put(batch(0), None)
    handover.put(batch(1), lambda: copied.wait() and None)
    handover.put(batch(2), None)
    here = threading.current_thread().name
    assert posted.next() == (0, here)
    assert posted.batches.empty()
    copied.set()
    assert [posted.next() for _ in range(2)] == [(1, "handover"), (2, "handover")]
    handover.close()
    handover.put(batch(3), None)
    assert posted.next() == (3, here)


def test_batch_is_an_error_when_its_copies_fail() -> None:
    posted = Posted()
    handover = Handover(posted)

    def fail() -> None:
        raise RuntimeError("the device is gone")

    handover.put(batch(0), fail)
    failed, _ = posted.batches.get(timeout=TIMEOUT_S)
    assert not failed.events
    assert isinstance(failed.error, Internal)
    assert "the device is gone" in failed.error.message
    handover.close()


@pytest.mark.parametrize("close_first", [False, True])
def test_what_waits_is_handed_on_before_the_end(close_first: bool) -> None:
    posted = Posted()
    handover = Handover(posted)
    copied = threading.Event()
    handover.put(batch(0), lambda: copied.wait() and None)
    closing = threading.Thread(target=handover.close)
    for action in (closing.start, copied.set) if close_first else (copied.set, closing.start):
        action()
    assert posted.next()[0] == 0
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()
