"""The engine's thread stands back for others; no other thread of the process does."""

from __future__ import annotations

import os
import queue
import sys

import pytest

from antiphon.runtime.engine import SegmentSettings
from antiphon.runtime.session.facts import EngineStepped
from antiphon.runtime.session.instructions import Admit
from antiphon.runtime.stepping.thread import EngineThread
from antiphon.values.sampling import Sampling
from antiphon.values.segment import SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import FakeEngine

TIMEOUT_S = 120.0
SETTINGS = SegmentSettings("", Sampling(0.0, 0, 1.0, 1.0, 0, 1), frozenset())


class Telling(FakeEngine):
    """Tells the priority of the thread that runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.nice: queue.Queue[int] = queue.Queue()

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        self.nice.put(os.getpriority(os.PRIO_PROCESS, 0))
        super().admit(key, settings)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
@pytest.mark.parametrize("nice", [0, 3, 19])
def test_only_the_engines_thread_stands_back(nice: int) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    engine = Telling()
    batches: queue.Queue[EngineStepped] = queue.Queue()
    thread = EngineThread(engine, batches.put, {}, nice=nice)
    thread.start()
    thread.submit([Admit(SegmentKey("a", 0), SETTINGS)])
    assert engine.nice.get(timeout=TIMEOUT_S) == min(before + nice, 19)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
    thread.stop()
    assert thread.join(TIMEOUT_S)
