from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from antiphon_gateway.keys.key_file import KeyLimits
from antiphon_gateway.keys.key_use import KeyLimitReached, KeyUse
from antiphon_gateway.keys.minute import LastMinute


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.25

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def refusal(enter: Callable[[], object]) -> KeyLimitReached:
    with pytest.raises(KeyLimitReached) as caught:
        enter()
    return caught.value


@pytest.mark.parametrize("seed", range(4))
def test_last_minute_is_what_a_list_of_all_amounts_says(seed: int) -> None:
    rng = random.Random(seed)
    minute, all_of_them, now = LastMinute(), [], 12.0
    for _ in range(500):
        now += rng.choice((0.0, 0.3, 1.0, 7.5, 59.9, 61.0, 500.0)) * (rng.random() < 0.4)
        amount = rng.uniform(0, 5)
        minute.add(amount, now)
        all_of_them.append((now // 1, amount))
        recent = [each for second, each in all_of_them if second > now // 1 - 60]
        assert minute.total(now) == pytest.approx(sum(recent))
        limit = rng.uniform(0.1, 20)
        after_s = minute.below_after_s(limit, now)
        assert (after_s == 0) is (minute.total(now) < limit)
        later = LastMinute()
        for second, each in all_of_them[-60:]:
            later.add(each, second)
        if after_s and len(all_of_them) <= 60:
            assert later.total(now + after_s + 1e-6) < limit


def test_requests_at_a_time_are_bounded_and_the_wait_is_how_long_they_take(clock: Clock) -> None:
    hit: list[str] = []
    use = KeyUse("app", KeyLimits(concurrency=2), hit.append, clock=clock)
    with use.request():
        clock.now_s += 8.0
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(use.request())
        error = refusal(lambda: held.enter_context(use.request()))
        assert (error.limit, error.retry_after_s) == ("concurrency", 4.0)
        assert "the key app has reached its limit concurrency of 2" in error.message
    with use.request():
        pass
    assert hit == ["key_concurrency"]


def test_requests_of_a_minute_are_bounded_until_the_first_is_a_minute_old(clock: Clock) -> None:
    use = KeyUse("app", KeyLimits(requests_per_minute=3), clock=clock)
    for _ in range(3):
        with use.request():
            clock.now_s += 10.0
    # The first came at 1000.25, in a second that is a minute old at 1060.
    error = refusal(use.request().__enter__)
    assert (error.limit, error.retry_after_s) == ("requests_per_minute", 29.75)
    clock.now_s += 29.75
    with use.request():
        pass
    assert refusal(use.request().__enter__).limit == "requests_per_minute"


def test_no_request_begins_when_more_audio_was_made_than_may_be(clock: Clock) -> None:
    use = KeyUse("app", KeyLimits(audio_seconds_per_minute=20), clock=clock)
    with use.request():
        use.add_audio(15.0)
        clock.now_s += 30.0
        use.add_audio(15.0)
    error = refusal(use.request().__enter__)
    assert (error.limit, error.retry_after_s) == ("audio_seconds_per_minute", 29.75)
    clock.now_s += 29.75
    with use.request():
        pass


def test_conversations_are_bounded(clock: Clock) -> None:
    use = KeyUse("app", KeyLimits(conversations=1), clock=clock)
    with use.conversation():
        assert refusal(use.conversation().__enter__).limit == "conversations"
        with use.request():
            pass
    with use.conversation():
        pass


def test_without_limits_nothing_is_refused(clock: Clock) -> None:
    use = KeyUse(clock=clock)
    with ExitStack() as held:
        for _ in range(1000):
            held.enter_context(use.request())
            use.add_audio(1000.0)
