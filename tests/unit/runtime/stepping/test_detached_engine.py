"""An engine that waits for processes of its own: commands interrupt it, the thread closes it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Sequence

from antiphon.errors import AntiphonError
from antiphon.runtime.engine import EngineEvent, InputChunk, SegmentSettings
from antiphon.runtime.session.facts import EngineStepped
from antiphon.runtime.session.instructions import Admit, Release
from antiphon.runtime.stepping.thread import EngineThread
from antiphon.values.sampling import Sampling
from antiphon.values.segment import SegmentKey

TIMEOUT_S = 120.0
SETTINGS = SegmentSettings("", Sampling(0.0, 0, 1.0, 1.0, 0, 1), frozenset())
FIRST, SECOND = SegmentKey("a", 0), SegmentKey("b", 0)


class Waiting:
    """An engine from which nothing ever comes."""

    def __init__(self) -> None:
        self.steps: queue.Queue[set[SegmentKey]] = queue.Queue()
        self.closed = threading.Event()
        self._keys: set[SegmentKey] = set()
        self._interrupted = threading.Event()

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        self._keys.add(key)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        raise AssertionError("nothing is fed")

    def awaited_edge(self, key: SegmentKey) -> str | None:
        return None

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        self.steps.put(set(self._keys))
        assert self._interrupted.wait(TIMEOUT_S)
        self._interrupted.clear()
        return ()

    def release(self, key: SegmentKey) -> None:
        self._keys.remove(key)

    def interrupt(self) -> None:
        self._interrupted.set()

    def watch(self, changed: Callable[[AntiphonError | None], None]) -> None:
        raise AssertionError("nobody watches")

    def close(self) -> None:
        self.closed.set()


def test_commands_interrupt_a_step_that_waits_and_stop_closes_the_engine() -> None:
    engine = Waiting()
    batches: queue.Queue[EngineStepped] = queue.Queue()
    thread = EngineThread(engine, batches.put, {})
    thread.start()
    thread.submit([Admit(FIRST, SETTINGS)])
    assert engine.steps.get(timeout=TIMEOUT_S) == {FIRST}
    thread.submit([Admit(SECOND, SETTINGS)])
    while engine.steps.get(timeout=TIMEOUT_S) != {FIRST, SECOND}:
        thread.batch_taken()
    thread.submit([Release(FIRST)])
    while engine.steps.get(timeout=TIMEOUT_S) != {SECOND}:
        thread.batch_taken()
    assert not engine.closed.is_set()
    thread.stop()
    assert thread.join(TIMEOUT_S)
    assert engine.closed.is_set()
