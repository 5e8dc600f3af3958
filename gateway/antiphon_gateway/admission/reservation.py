"""A request's reservation. It lasts from the request's arrival in the queue until the request has
been answered.

This is a thin layer around `AdmissionQueue`, which makes all of the decisions. It adds a future for
each waiting request, a timer, and metrics.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from antiphon.deadlines.timer import Timer
from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import (
    AntiphonError,
    Cancelled,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from antiphon_gateway.admission.admission import AdmissionQueue, Decision, Denied, Reason
from antiphon_gateway.admission.admission_request import AdmissionRequest
from antiphon_gateway.admission.byte_budget import SETTING, Holder, share_bytes
from antiphon_gateway.admission.refused_slots import RefusedSlots
from antiphon_gateway.changes import ChangeSignal
from antiphon_gateway.metrics import Metrics

log = logging.getLogger("gateway.admission")

SHUTDOWN_RETRY_S = 1.0
SHORTEST_S = 0.001
"""The minimum number of seconds left until a deadline. The stages themselves end late requests and
report them.
"""
REFUSED_S = 30.0
"""The number of seconds for which a request that didn't get a slot counts as demand."""


class GivenUp(Cancelled):
    """Raised if a client cancelled its request while it was waiting."""


class Reservation:
    """The reservation of a single request. The caller must report whether the request could be
    started.

    While the request is waiting, its `size_bytes` bytes count towards the memory budget.
    """

    def __init__(
        self,
        number: int,
        request: AdmissionRequest,
        queue: AdmissionQueue,
        carry_out: Callable[[Iterable[Decision]], None],
    ) -> None:
        self.request = request
        self.is_open = self.was_open = False
        """Whether all stages have granted their slots in the current attempt, or in any attempt."""
        # The error of the stage that had no slot for the request.
        self.refusal: ResourceExhausted | None = None
        self._number = number
        self._queue = queue
        self._carry_out = carry_out
        self._loop = asyncio.get_running_loop()
        self._asked_at = self._loop.time()
        self._attempt = 0
        self._freed: Counter[str] = Counter()
        self._decided: asyncio.Future[None] = self._loop.create_future()

    @property
    def waited_s(self) -> float:
        """The number of seconds since the request was made."""
        return self._loop.time() - self._asked_at

    @property
    def waits(self) -> bool:
        """Whether the request still has to wait before it can start."""
        return not self._decided.done()

    @property
    def left_s(self) -> float:
        """How many seconds the request has left. This is always greater than 0."""
        return max(self.request.finish_within_s - self.waited_s, SHORTEST_S)

    async def granted(self) -> None:
        """Wait until the request can start.

        Raises `ResourceExhausted` if the request is denied, `InvalidArgument` if it could never
        start, `Unavailable` at shutdown, and `GivenUp` after a call of `give_up`. If this is
        cancelled, only the wait ends, because the reservation itself ends with its context.
        """
        await self._decided

    def give_up(self) -> None:
        """Stop waiting. Has no effect if the request has already been admitted."""
        self.decide(GivenUp("the client canceled the request"))

    def attempt(self) -> Callable[[str], None]:
        """Start an attempt to open the request on its stages. There can be several attempts.

        Returns a callback to be called when a stage has finished a segment. The callback has no
        effect until all stages have granted their slots.
        """
        self._attempt += 1
        self._freed.clear()
        if self.is_open:
            self.is_open = False
            self._queue.asked_again(self._number)
        return partial(self._done, self._attempt)

    def opened(self) -> None:
        """Record that all stages have granted their slots."""
        if not self.is_open:
            self.is_open = self.was_open = True
            self._carry_out(self._queue.opened(self._number, self._loop.time()))
        for role in tuple(self._freed):
            self._tell_freed(role)

    def refused(self, error: ResourceExhausted) -> None:
        """Put the request back in the queue, because a stage had no slot for it. The caller must
        then await `granted` again.

        The error is stored without its traceback. The traceback's frames refer to the request with
        all of its data and to this object. Together, they would form a reference cycle that
        outlives the wait.
        """
        error.__cause__ = error.__context__ = None
        self.refusal = error.with_traceback(None)
        self._attempt += 1
        self.is_open = False
        self._decided = self._loop.create_future()
        self._carry_out(self._queue.refused(self._number, error.stage, self._loop.time()))

    def _done(self, attempt: int, role: str) -> None:
        """Record that a stage has finished one of its segments."""
        if attempt == self._attempt:
            self._freed[role] += 1
            self._tell_freed(role)

    def _tell_freed(self, role: str) -> None:
        if self.is_open and self._freed[role] == self.request.count:
            self._carry_out(self._queue.freed(self._number, role, self._loop.time()))

    def leave(self) -> None:
        """End the reservation, because the request has completed or was abandoned."""
        self._decided.cancel()
        self._carry_out(self._queue.leave(self._number, self._loop.time()))

    def decide(self, error: AntiphonError | None) -> None:
        """Apply a decision of the queue, unless the reservation has already ended."""
        if self._decided.done():
            return
        if error is None:
            self._decided.set_result(None)
        else:
            self._decided.set_exception(error)


class Admission:
    """The reservations of all requests."""

    def __init__(self, config: GatewayConfig, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self._queue = AdmissionQueue(
            max_calls=config.queue.max_calls,
            max_waiting=config.queue.max_waiting,
            max_waiting_bytes=share_bytes(config, Holder.WAITING),
            longest_wait_s=config.queue.timeout_s,
        )
        # The slots that refused requests would have used. The signal is set when this value
        # changes, and when the waiting requests change.
        self.refused = RefusedSlots(REFUSED_S, self._queue.hold_s)
        self.changes = ChangeSignal()
        self._numbers = itertools.count()
        self._places: dict[int, Reservation] = {}
        self._timer = Timer(self._time_passed)
        self._waiting = 0
        self.idle = asyncio.Event()
        """An event that is set while there are no reservations."""
        self.idle.set()
        queue = self._queue
        metrics.watch("waiting", "Requests waiting for slots", lambda: queue.waiting)

    @property
    def in_flight(self) -> int:
        """The number of calls that have been admitted and are still in progress."""
        return self._queue.calls

    @property
    def wanted(self) -> Counter[str]:
        """Return the number of slots of each role that waiting requests need."""
        return self._queue.wanted()

    @contextmanager
    def place(self, request: AdmissionRequest, slots: Mapping[str, int]) -> Iterator[Reservation]:
        """Request admission. Returns a context manager for the reservation, which ends when the
        context is left.
        """
        number = next(self._numbers)
        place = Reservation(number, request, self._queue, self._carry_out)
        self._places[number] = place
        self.idle.clear()
        try:
            now = asyncio.get_running_loop().time()
            self._carry_out(self._queue.ask(number, request, slots, now))
            yield place
        finally:
            place.leave()
            del self._places[number]
            if not self._places:
                self.idle.set()

    async def check_room(self, request: AdmissionRequest, slots: Mapping[str, int]) -> None:
        """If a request would be denied right away, raise the error of `Reservation.granted`. This
        avoids reading the request's files.

        In that case, the request counts as denied.
        """
        if self._queue.would_deny(request, slots, asyncio.get_running_loop().time()):
            with self.place(request, slots) as place:
                if not place.waits:
                    await place.granted()

    def resize(self, slots: Mapping[str, int]) -> None:
        """Update the number of slots."""
        self._carry_out(self._queue.resize(slots, asyncio.get_running_loop().time()))

    def opened(self, place: Reservation) -> None:
        """Record that the stages of a reservation have granted their slots."""
        if not place.was_open:
            self._metrics.waited(place.request.urgency.name.lower(), place.waited_s)
            self._metrics.admission(place.request.priority, "admitted")
        place.opened()

    def close(self) -> None:
        """Refuse all waiting requests. It is up to the caller to refuse any further requests."""
        self._carry_out(self._queue.deny_all())

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            place = self._places[decision.number]
            if isinstance(decision, Denied):
                self._metrics.not_admitted(decision.reason)
                self._metrics.admission(place.request.priority, decision.reason)
                if decision.for_slots:
                    self._count_refused(place.request)
                place.decide(_error_of(decision, place, self._config))
            else:
                place.decide(None)
        if self._waiting != (waiting := self._queue.waiting):
            self._waiting = waiting
            log.debug("requests waiting for a slot: %d", waiting)
            self.changes.tell()
        if (moment := self._queue.next_deadline()) is None:
            self._timer.cancel()
        else:
            self._timer.set_at(moment)

    def _count_refused(self, request: AdmissionRequest) -> None:
        """Count the slots that a refused request would have used."""
        self.refused.add(request.roles, request.count, asyncio.get_running_loop().time())
        self.changes.tell()

    def _time_passed(self, late_s: float) -> None:
        now = max(asyncio.get_running_loop().time(), self._queue.next_deadline() or 0.0)
        self._carry_out(self._queue.pass_time(now))


def shutting_down() -> Unavailable:
    """Return the error for requests that arrive during shutdown."""
    return Unavailable("the gateway is shutting down", retry_after_s=SHUTDOWN_RETRY_S)


def _error_of(denied: Denied, place: Reservation, config: GatewayConfig) -> AntiphonError:
    """Return the error for a request that wasn't admitted."""
    if denied.reason is Reason.SHUTDOWN:
        return shutting_down()
    if denied.reason is Reason.TOO_MANY:
        return InvalidArgument(
            f"n: {place.request.count} choices need more calls (gateway.queue.max_calls) or "
            "stage slots than are available; request fewer choices",
            field="n",
        )
    retry_after_s, refusal = denied.retry_after_s, place.refusal
    if refusal is not None:
        retry_after_s = max(retry_after_s, refusal.retry_after_s)
    if refusal is not None and denied.reason is Reason.STAGE_FULL:
        refusal.retry_after_s = retry_after_s
        return refusal
    told = {
        Reason.QUEUE_LENGTH: (
            "all calls or slots that the request needs are in use, and "
            f"{config.queue.max_waiting} requests are already waiting "
            "(gateway.queue.max_waiting)"
        ),
        Reason.QUEUE_BYTES: (
            f"requests waiting for a slot have used up their share of {SETTING} "
            f"({share_bytes(config, Holder.WAITING)} of {config.limits.max_memory_bytes} bytes)"
        ),
        Reason.SHED: (
            "the queue is full, and the request was replaced by one with a higher priority, or "
            "by one whose API key has fewer waiting requests (gateway.queue.max_waiting: "
            f"{config.queue.max_waiting})"
        ),
        Reason.LATE: (
            f"the request can't be answered in time: about {denied.retry_after_s:.0f} s of work "
            "are queued ahead of it"
        ),
        Reason.TIME: (
            f"no slot became available within {place.waited_s:.1f} s; the maximum wait is "
            f"{config.queue.timeout_s:g} s (gateway.queue.timeout_s)"
        ),
    }
    stage = refusal.stage if refusal is not None else ""
    return ResourceExhausted(told[denied.reason], stage=stage, retry_after_s=retry_after_s)
