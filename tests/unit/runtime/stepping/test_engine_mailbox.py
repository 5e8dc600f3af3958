"""What waits for an engine that is in a step: bounded in bytes, and nobody's input is kept."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from antiphon.errors import ResourceExhausted
from antiphon.runtime.engine import EngineEvent, InputChunk, SegmentSettings
from antiphon.runtime.session.facts import EngineStepped
from antiphon.runtime.session.instructions import Admit, Feed, Release
from antiphon.runtime.stepping.thread import EngineThread
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import GROUPS, NEUTRAL_SAMPLING, FakeEngine

TIMEOUT_S = 120.0
SETTINGS = SegmentSettings("", NEUTRAL_SAMPLING, frozenset({"audio"}))
RUNNING = SegmentKey("running", 0)
FRAME_BYTES = 2 * GROUPS
MAILBOX_BYTES = 1000 * FRAME_BYTES


class InStep(FakeEngine):
    """An engine whose steps say when they begin."""

    def __init__(self) -> None:
        super().__init__()
        self.gate.clear()
        self.in_step = threading.Event()

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        self.in_step.set()
        return super().step(held)


def frames(count: int) -> InputChunk:
    return InputChunk("codes", 0, {"codes": np.zeros((count, GROUPS), np.uint16)})


@pytest.fixture
def engine() -> InStep:
    return InStep()


@pytest.fixture
def batches() -> queue.Queue[EngineStepped]:
    return queue.Queue()


@pytest.fixture
def thread(engine: InStep, batches: queue.Queue[EngineStepped]) -> Iterator[EngineThread]:
    """An engine's thread that is in a step."""
    thread = EngineThread(engine, batches.put, {}, mailbox_bytes=MAILBOX_BYTES)
    thread.start()
    thread.submit([Admit(RUNNING, SETTINGS)])
    thread.submit([Feed(RUNNING, frames(1))])
    assert engine.in_step.wait(TIMEOUT_S)
    yield thread
    engine.gate.set()
    thread.stop()
    assert thread.join(TIMEOUT_S)


def test_input_is_dropped_at_once_when_its_segment_is_released_during_a_step(
    thread: EngineThread,
) -> None:
    alive = []
    for number in range(60):
        key, chunk = SegmentKey(f"cancelled-{number}", 0), frames(900)
        alive.append(weakref.ref(chunk.tensors["codes"]))
        thread.submit([Admit(key, SETTINGS)])
        thread.submit([Feed(key, chunk)])
        del chunk
        thread.submit([Release(key)])
    assert [each() for each in alive] == [None] * 60


def test_input_that_has_been_taken_is_kept_by_nobody_but_the_engine(
    thread: EngineThread, engine: InStep, batches: queue.Queue[EngineStepped]
) -> None:
    key, chunk = SegmentKey("next", 0), frames(10)
    alive = weakref.ref(chunk.tensors["codes"])
    thread.submit([Admit(key, SETTINGS)])
    thread.submit([Feed(key, chunk)])
    del chunk
    engine.gate.set()
    while not any(event.key == key for event in batches.get(timeout=TIMEOUT_S).events):
        pass
    assert alive() is None


def test_submit_refuses_input_beyond_the_bound_in_bytes_until_some_is_released(
    thread: EngineThread, engine: InStep
) -> None:
    first, second = SegmentKey("first", 0), SegmentKey("second", 0)
    thread.submit([Admit(first, SETTINGS)])
    thread.submit([Admit(second, SETTINGS)])
    thread.submit([Feed(first, frames(600))])
    ((_, error),) = thread.submit([Feed(second, frames(401))])
    assert isinstance(error, ResourceExhausted)
    assert "mailbox_bytes" in error.message
    assert thread.submit([Feed(second, frames(400))]) == []
    assert thread.submit([Release(first), Feed(second, frames(600))]) == []
    ((refused, error),) = thread.submit([Feed(second, frames(1)), Release(first)])
    assert isinstance(refused, Feed)
    assert "mailbox_bytes" in error.message


def test_recordings_among_the_options_count_as_input(thread: EngineThread) -> None:
    reference = np.zeros(MAILBOX_BYTES // 8, np.float32)
    said = replace(SETTINGS, options={"reference": reference, "language": "welsh"})
    key = SegmentKey("cloned", 0)
    assert thread.submit([Admit(key, said)]) == []
    ((refused, error),) = thread.submit([Feed(key, frames(501))])
    assert isinstance(refused, Feed)
    assert "mailbox_bytes" in error.message
    assert thread.submit([Feed(key, frames(500))]) == []


def test_one_input_larger_than_the_bound_goes_in_when_no_other_waits(thread: EngineThread) -> None:
    key = SegmentKey("large", 0)
    thread.submit([Admit(key, SETTINGS)])
    assert thread.submit([Feed(key, frames(1001))]) == []
    ((_, error),) = thread.submit([Feed(key, frames(1))])
    assert isinstance(error, ResourceExhausted)


def test_a_segment_that_the_engine_knows_is_released_and_its_waiting_input_never_fed(
    thread: EngineThread, engine: InStep, batches: queue.Queue[EngineStepped]
) -> None:
    thread.submit([Feed(RUNNING, InputChunk("codes", 1, {}, True, FinishReason.STOP))])
    thread.submit([Release(RUNNING)])
    engine.gate.set()
    assert engine.released.get(timeout=TIMEOUT_S) == RUNNING
    (first,) = batches.get(timeout=TIMEOUT_S).events
    assert first.key == RUNNING
    assert batches.empty()
