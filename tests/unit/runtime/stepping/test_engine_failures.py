"""What the engine's thread makes of steps that raise, and of what escapes it."""

from __future__ import annotations

import queue
from collections.abc import Collection, Iterator, Sequence

import pytest

from antiphon.errors import Internal, Unavailable
from antiphon.runtime.engine import EngineEvent, SegmentSettings
from antiphon.runtime.session.facts import EngineStepped
from antiphon.runtime.session.instructions import Admit, Release
from antiphon.runtime.stepping.rounds import FAILURES_TO_GIVE_UP
from antiphon.runtime.stepping.thread import EngineThread
from antiphon.values.segment import SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING, FakeEngine

TIMEOUT_S = 120.0
SETTINGS = SegmentSettings("", NEUTRAL_SAMPLING, frozenset({"audio"}))


class Broken(FakeEngine):
    """Whose every segment can step, and whose steps raise unless `well`."""

    def __init__(self) -> None:
        super().__init__()
        self.well = False
        self.cannot_release = False
        self.cannot_tell = False

    def awaited_edge(self, key: SegmentKey) -> str | None:
        if self.cannot_tell:
            raise KeyError(key)
        return "codes" if self.well and self.stepped.qsize() else None

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        if not self.well:
            raise RuntimeError("an illegal memory access")
        self.stepped.put(1)
        return ()

    def release(self, key: SegmentKey) -> None:
        if self.cannot_release:
            raise RuntimeError("an illegal memory access, again")
        super().release(key)


@pytest.fixture
def engine() -> Broken:
    return Broken()


@pytest.fixture
def batches() -> queue.Queue[EngineStepped]:
    return queue.Queue()


@pytest.fixture
def thread(engine: Broken, batches: queue.Queue[EngineStepped]) -> Iterator[EngineThread]:
    thread = EngineThread(engine, batches.put, {}, is_fatal=lambda error: "poison" in str(error))
    thread.start()
    yield thread
    thread.stop()
    assert thread.join(TIMEOUT_S)


def next_error(batches: queue.Queue[EngineStepped]) -> EngineStepped:
    """The next batch that tells of an error."""
    while (batch := batches.get(timeout=TIMEOUT_S)).error is None:
        pass
    return batch


def test_a_step_that_raises_fails_its_segments_and_the_engine_goes_on(
    engine: Broken, batches: queue.Queue[EngineStepped], thread: EngineThread
) -> None:
    for number in range(FAILURES_TO_GIVE_UP - 1):
        thread.submit([Admit(SegmentKey(f"bad-{number}", 0), SETTINGS)])
        failed = next_error(batches)
        assert isinstance(failed.error, Internal)
        assert not failed.fatal
    engine.well = True
    thread.submit([Admit(SegmentKey("good", 0), SETTINGS)])
    assert batches.get(timeout=TIMEOUT_S).step_segments
    engine.well = False
    engine.stepped.get_nowait()
    thread.submit([Admit(SegmentKey("bad", 0), SETTINGS)])
    assert not next_error(batches).fatal, "a good step has begun the count anew"


def test_steps_that_keep_raising_end_the_engine(
    batches: queue.Queue[EngineStepped], thread: EngineThread
) -> None:
    for number in range(FAILURES_TO_GIVE_UP):
        thread.submit([Admit(SegmentKey(f"bad-{number}", 0), SETTINGS)])
        failed = next_error(batches)
        assert failed.fatal == (number == FAILURES_TO_GIVE_UP - 1)
    assert isinstance(failed.error, Unavailable)
    assert thread.join(TIMEOUT_S)


def test_a_release_that_raises_after_a_failed_step_ends_the_engine_and_is_told(
    engine: Broken, batches: queue.Queue[EngineStepped], thread: EngineThread
) -> None:
    engine.cannot_release = True
    thread.submit([Admit(SegmentKey("bad", 0), SETTINGS)])
    failed = next_error(batches)
    assert failed.fatal
    assert isinstance(failed.error, Unavailable)
    assert "an illegal memory access" in failed.error.message
    assert thread.join(TIMEOUT_S)


def test_an_error_that_poisons_the_device_ends_the_engine_at_once(
    engine: Broken, batches: queue.Queue[EngineStepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(key: SegmentKey, settings: SegmentSettings) -> None:
        raise RuntimeError("poison")

    monkeypatch.setattr(engine, "admit", poisoned)
    thread = EngineThread(engine, batches.put, {}, is_fatal=lambda error: "poison" in str(error))
    thread.start()
    thread.submit([Admit(SegmentKey("bad", 0), SETTINGS)])
    assert next_error(batches).fatal
    assert thread.join(TIMEOUT_S)


def test_a_release_that_raises_alone_fails_every_segment(
    engine: Broken, batches: queue.Queue[EngineStepped], thread: EngineThread
) -> None:
    """What it left behind is not known, and a slot may be lost."""
    engine.well = True
    thread.submit([Admit(SegmentKey("one", 0), SETTINGS)])
    assert batches.get(timeout=TIMEOUT_S).step_segments
    engine.cannot_release = True
    thread.submit([Release(SegmentKey("one", 0))])
    failed = next_error(batches)
    assert isinstance(failed.error, Internal)
    assert not failed.fatal


def test_whatever_escapes_the_thread_is_told(
    engine: Broken, batches: queue.Queue[EngineStepped], thread: EngineThread
) -> None:
    engine.well = True
    thread.submit([Admit(SegmentKey("one", 0), SETTINGS)])
    assert batches.get(timeout=TIMEOUT_S).step_segments
    engine.cannot_tell = True
    thread.submit([Admit(SegmentKey("two", 0), SETTINGS)])
    failed = next_error(batches)
    assert failed.error is not None
    assert "KeyError" in failed.error.message
