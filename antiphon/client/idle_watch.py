"""A thread that ends blocking calls when their idle timeout expires.

A reader sets its deadline by assigning to `due_at`. The thread checks a call at the earliest
possible deadline and checks it again later if the deadline has been moved. A check can be too
early, but never too late.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from typing import Protocol

NEVER = math.inf


class Watched(Protocol):
    """A call to watch. The watch ends when `idle_s` differs from the value that was passed to
    `add`.

    `due_at` is the deadline for the reader's current wait, or `NEVER` if the reader isn't waiting.
    """

    due_at: float
    idle_s: float | None

    @property
    def over(self) -> bool:
        """Whether the call has ended."""
        ...

    def give_up(self) -> None:
        """End the call."""
        ...


class IdleWatch:
    """Watches calls as described in the module docstring. The thread is started when the first call
    is added.
    """

    clock = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: list[tuple[float, int, float, Watched]] = []
        self._numbers = itertools.count()
        self._running = self._closed = False

    def add(self, call: Watched, idle_s: float) -> None:
        """Watch a call until it ends or its `idle_s` changes. After a change, the call has to be
        added again.
        """
        with self._changed:
            self._push(call, idle_s, self.clock() + idle_s)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="antiphon-idle", daemon=True).start()
            self._changed.notify()

    def close(self) -> None:
        """Stop the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                if not self._entries:
                    self._changed.wait()
                    continue
                look_at, _, idle_s, call = self._entries[0]
                now = self.clock()
                if look_at > now:
                    self._changed.wait(look_at - now)
                    continue
                heapq.heappop(self._entries)
                if call.over or call.idle_s != idle_s:
                    continue
                if call.due_at <= now:
                    call.give_up()
                else:
                    self._push(call, idle_s, min(call.due_at, now + idle_s))

    def _push(self, call: Watched, idle_s: float, look_at: float) -> None:
        heapq.heappush(self._entries, (look_at, next(self._numbers), idle_s, call))
