"""Delivers batches from the engine thread once their tensors have been copied to the host.

If the copies of a batch are already complete, and no earlier batch is waiting, the batch is
delivered immediately on the engine thread. Otherwise, a separate thread waits for the copies and
delivers the batches in order. This thread is started only when a batch first has to wait, so an
engine on a CPU never needs it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from msgspec import structs

from antiphon.errors import Internal
from antiphon.runtime.engine import never_fatal
from antiphon.runtime.session.facts import EngineStepped
from antiphon.runtime.stepping.rounds import engine_at_its_end
from antiphon.runtime.stepping.watchdog import Pulse

Wait = Callable[[], None]
Post = Callable[[EngineStepped], None]

log = logging.getLogger(__name__)


class Handover:
    """Passes all batches to `post` in the order in which they were put. `put` and `close` must be
    called on the engine thread.

    The number of waiting batches is limited by the engine's permits. `pulse` is active while the
    thread waits for copies. If a copy fails with an error for which `is_fatal` returns true, its
    batch is the last one.
    """

    def __init__(
        self,
        post: Post,
        pulse: Pulse | None = None,
        is_fatal: Callable[[Exception], bool] = never_fatal,
    ) -> None:
        self._post = post
        self._pulse = pulse or Pulse()
        self._is_fatal = is_fatal
        self._waiting: queue.SimpleQueue[tuple[EngineStepped, Wait | None] | None]
        self._waiting = queue.SimpleQueue()
        self._under_way = 0
        self._counting = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, batch: EngineStepped, wait: Wait | None) -> None:
        """Deliver a batch as soon as `wait` has returned, or immediately if `wait` is None. This
        never blocks.
        """
        with self._counting:
            direct = wait is None and not self._under_way
            self._under_way += not direct
        if direct:
            self._post(batch)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="handover", daemon=True)
            self._thread.start()
        self._waiting.put((batch, wait))

    def close(self) -> None:
        """Deliver all batches that are waiting and then stop the thread."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            batch, wait = item
            self._post(self._completed(batch, wait))
            with self._counting:
                self._under_way -= 1

    def _completed(self, batch: EngineStepped, wait: Wait | None) -> EngineStepped:
        """Return the batch once its copies are complete. If a copy failed, the batch contains no
        events.
        """
        if wait is None:
            return batch
        self._pulse.begin()
        try:
            wait()
        except Exception as error:
            log.exception("copying outputs to the host failed")
            what = f"copying to the host failed: {error}"
            fatal = self._is_fatal(error)
            fault = engine_at_its_end(what) if fatal else Internal(what)
            return structs.replace(batch, events=(), error=fault, fatal=fatal)
        finally:
            self._pulse.end()
        return batch
