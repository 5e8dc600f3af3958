"""What a stage counts of audio that is late, and of output that waits for credit."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import Emitted
from antiphon.runtime.session.facts import (
    Credited,
    EngineStepped,
    SegmentRequested,
    SessionRequested,
    StreamLost,
    TimePassed,
)
from antiphon.runtime.session.instructions import Destination, Send
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest, StageLimits, StagePlan
from antiphon.runtime.session.table import SessionTable
from antiphon.runtime.session.tally import Stalls
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import Delivery, FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING

RATE_HZ = 10
LIMITS = StageLimits(slots=4, stall_timeout_s=1e4, hold_timeout_s=5.0, hold_bytes=4000)


class Speaking:
    """A code2wav whose sessions speak at ten samples a second; `window` in samples."""

    def __init__(self, window: int = 0, *, delivery: Delivery = Delivery.STREAM) -> None:
        plan = StagePlan.of(PIPELINE, "code2wav", NEUTRAL_SAMPLING, LIMITS, sample_rate_hz=RATE_HZ)
        self.table = SessionTable(plan)
        self._window = window
        self._delivery = delivery
        self._made: dict[str, int] = {}

    def open(self, name: str, now: float = 0.0) -> None:
        windows = {"audio": self._window} if self._window else {}
        request = SessionRequest(name, {"audio": (Destination(),)}, windows=windows)
        self.table.handle(SessionRequested(request), now)
        delivery = {"audio": self._delivery}
        segment = SegmentRequest(0, SamplingRequest(), "", frozenset({"audio"}), delivery)
        self.table.handle(SegmentRequested(name, segment), now)

    def make(self, name: str, samples: int, now: float, *, last: bool = False) -> int:
        """The engine has made so many samples: how many chunks leave."""
        position = self._made.get(name, 0)
        self._made[name] = position + samples
        tensors = {"samples": np.zeros(samples, np.float32)} if samples else {}
        reason = FinishReason.STOP if last else None
        emitted = Emitted(SegmentKey(name, 0), "audio", position, tensors, reason)
        return _sends(self.table.handle(EngineStepped((emitted,), {}), now))

    def grant(self, name: str, samples: int, now: float) -> int:
        credit = Credited(SegmentKey(name, 0), "audio", Destination(), samples)
        return _sends(self.table.handle(credit, now))

    @property
    def underruns(self) -> tuple[int, float]:
        tally = self.table.tally
        return tally.underruns["audio"], tally.underrun_s["audio"]

    def stalls(self, now: float) -> tuple[int, float]:
        stalls = self.table.tally.stalls
        return stalls.counts["audio"], stalls.seconds("audio", now)


def _sends(instructions: list[object]) -> int:
    return sum(isinstance(each, Send) for each in instructions)


def test_audio_that_comes_before_the_last_was_played_is_in_time() -> None:
    speaking = Speaking()
    speaking.open("a")
    for now in (100.0, 100.9, 101.0, 103.0):
        speaking.make("a", 10, now)
    assert speaking.underruns == (0, 0.0)


def test_chunk_after_all_was_played_is_an_underrun_for_as_long_as_nothing_was_there() -> None:
    speaking = Speaking()
    speaking.open("a")
    speaking.make("a", 10, 100.0)
    speaking.make("a", 10, 101.5)
    assert speaking.underruns == (1, 0.5)
    # He goes on playing at 101.5, so this one is in time, and the next is 0.25 s late.
    speaking.make("a", 5, 102.5)
    speaking.make("a", 5, 103.25)
    assert speaking.underruns == (2, 0.75)
    # The end of the edge carries nothing that could be late.
    speaking.make("a", 0, 110.0, last=True)
    assert speaking.underruns == (2, 0.75)


def test_each_listener_has_a_clock_of_his_own() -> None:
    speaking = Speaking()
    for name, now in (("a", 0.0), ("b", 5.0)):
        speaking.open(name)
        speaking.make(name, 10, now)
    speaking.make("a", 10, 0.5)
    speaking.make("b", 10, 6.25)
    assert speaking.underruns == (1, 0.25)


def test_what_is_delivered_whole_is_never_late() -> None:
    speaking = Speaking(delivery=Delivery.WHOLE)
    speaking.open("a")
    speaking.make("a", 10, 0.0)
    assert speaking.make("a", 10, 50.0, last=True) == 1
    assert speaking.underruns == (0, 0.0)


def test_waiting_for_credit_is_counted_while_it_lasts_and_is_no_underrun() -> None:
    speaking = Speaking(window=20)
    speaking.open("a")
    assert speaking.make("a", 20, 100.0) == 1
    # The listener has two seconds, and takes no more for nine.
    assert speaking.stalls(103.0) == (1, 3.0)
    assert speaking.stalls(109.0) == (1, 9.0)
    speaking.grant("a", 40, 109.0)
    assert speaking.stalls(150.0) == (1, 9.0)
    # He still has his two seconds when he goes on.
    speaking.make("a", 10, 110.5)
    assert speaking.underruns == (0, 0.0)
    # Three seconds in all; the next chunk comes four after he went on.
    speaking.make("a", 5, 113.0)
    assert speaking.underruns == (1, 1.0)
    assert speaking.stalls(113.0) == (1, 9.0)


def test_listener_pauses_on_when_what_goes_is_all_that_there_is_credit_for() -> None:
    speaking = Speaking(window=20)
    speaking.open("a")
    speaking.make("a", 20, 100.0)
    # A step may end beyond what was granted.
    assert speaking.make("a", 15, 101.0) == 0
    assert speaking.grant("a", 35, 109.0) == 1
    assert speaking.stalls(112.0) == (1, 12.0)
    speaking.grant("a", 60, 115.0)
    # He has had 3.5 seconds since then.
    speaking.make("a", 10, 118.0)
    assert speaking.underruns == (0, 0.0)
    assert speaking.stalls(118.0) == (1, 15.0)


def test_stalls_of_several_sessions_add_up_and_end_with_their_sessions() -> None:
    speaking = Speaking(window=20)
    for name, now in (("a", 10.0), ("b", 12.0)):
        speaking.open(name)
        speaking.make(name, 20, now)
    assert speaking.stalls(13.0) == (2, 4.0)
    speaking.table.handle(StreamLost("a"), 14.0)
    assert speaking.stalls(20.0) == (2, 12.0)
    speaking.grant("b", 40, 21.0)
    assert speaking.stalls(100.0) == (2, 13.0)


def test_no_credit_is_waited_for_where_there_is_no_window() -> None:
    speaking = Speaking()
    speaking.open("a")
    speaking.make("a", 1000, 0.0)
    speaking.table.handle(TimePassed(), 9.0)
    assert speaking.stalls(9.0) == (0, 0.0)


def test_seconds_do_not_run_backwards_when_a_page_is_older_than_the_latest_fact() -> None:
    stalls = Stalls()
    stalls.now = 5.0
    began = stalls.begin("audio")
    assert stalls.seconds("audio", 4.0) == 0.0
    stalls.now = 7.5
    stalls.end("audio", began)
    assert stalls.seconds("audio", 4.0) == pytest.approx(2.5)
