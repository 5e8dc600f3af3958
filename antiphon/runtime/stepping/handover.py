"""Batches on their way from the engine's thread, each when its tensors are on the host.

A batch whose copies are complete goes on at once, on the engine's thread, unless an
earlier one still waits; then all go on in order from a thread that waits for copies.
That thread is started by the first batch that has to wait: never on a CPU.
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
    """`put` and `close` are the engine thread's; `post` is called in the order of `put`.

    What waits is bounded by whoever puts: the engine has a number of permits. `pulse`
    beats while copies are waited for; an error of theirs that `is_fatal` is the last batch.
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
        """Hand a batch on once `wait`, if any, has returned. Does not wait itself."""
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
        """End the thread after what waits."""
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
        """The batch once its copies are complete; if they failed, nothing of it can be used."""
        if wait is None:
            return batch
        self._pulse.begin()
        try:
            wait()
        except Exception as error:
            log.exception("copying outputs to the host failed")
            what = f"copying to the host failed: {error}"
            fatal = self._is_fatal(error)
            told = engine_at_its_end(what) if fatal else Internal(what)
            return structs.replace(batch, events=(), error=told, fatal=fatal)
        finally:
            self._pulse.end()
        return batch
