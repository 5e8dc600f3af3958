"""A segment that can continue after a replica has been lost.

The session is opened again, with another replica in place of the one that was lost. The other
replicas stay the same, and the same request is sent with the same seeds. Stages that are able to
continue after the output that the client already has receive it when the session is opened. The
other stages compute it again. If any stage refuses this output, all stages compute it again. The
stages then resend their output, and the part that the client already has is dropped. The client
sees a single answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import (
    AntiphonError,
    ErrorCode,
    InvalidArgument,
    NotFound,
)
from antiphon.values.history import History
from antiphon.values.segment import FinishReason
from antiphon_gateway.admission.byte_budget import ByteLease
from antiphon_gateway.failover.budget import FailoverBudget
from antiphon_gateway.failover.delivered import DeliveredOutput
from antiphon_gateway.failover.replica_retries import REFUSALS, ReplicaRetries
from antiphon_gateway.fleet.assignment import Assignment
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.metrics import Metrics
from antiphon_gateway.sessions.call_segment import CallSegment
from antiphon_gateway.sessions.events import Event, SegmentFinished, SegmentUsage

log = logging.getLogger("gateway.failover")

PAUSE_S = 0.05
"""How many seconds to wait before trying full replicas again, unless the fleet changes sooner."""

COUNTED_BYTES = 16 << 10
"""Each time an answer has grown by this many bytes, the memory budget is updated."""

_LOSSES = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.DATA_LOSS})
"""The error codes whose cause is a replica or the connection to it, rather than the request."""
_NO_USAGE = SegmentUsage(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class LostSegment:
    """An attempt that was lost and the part of its output that the client has."""

    drawn_seed: int
    assignment: Assignment
    history: History | None


AskAgain = Callable[[LostSegment, Collection[Replica]], Awaitable[CallSegment]]
"""A function that leaves the session of a lost segment and sends the same request in a new session.
The new session doesn't use the given replicas.
"""


class Failover:
    """State that is shared by all segments of a gateway that are able to fail over."""

    def __init__(self, fleet: Fleet, config: GatewayConfig, metrics: Metrics) -> None:
        self.fleet = fleet
        self.most = config.failover.failovers
        self.wait_s = config.failover.wait_s
        self.return_s = config.failover.return_s
        self.max_history_bytes = config.failover.max_history_bytes
        self.budget = FailoverBudget(per_minute=config.failover.failovers_per_minute)
        self.metrics = metrics


class FailoverSegment:
    """An async iterator over the events of a segment, like `CallSegment`, but with several
    attempts.

    `lease` covers the memory for the request and for the part of the answer that is kept. Once it
    is closed, the segment can't fail over any more.
    """

    def __init__(
        self, segment: CallSegment, failover: Failover, ask_again: AskAgain, lease: ByteLease
    ) -> None:
        self._segment = segment
        self._failover = failover
        self._ask_again = ask_again
        self._lease = lease
        self._counted_bytes = 0
        # None if the answer isn't kept, and once the lease has been evicted.
        self._delivered: DeliveredOutput | None = None if lease.closed else DeliveredOutput()
        self._failovers = 0
        self._cancelled = self._over = False
        # Whether the current attempt continues after a history, and whether any stage has refused
        # to do so.
        self._from_history = self._anew = False

    def __aiter__(self) -> FailoverSegment:
        return self

    async def __anext__(self) -> Event:
        """Return the next event. Raises `AntiphonError` if the segment fails.

        No event is lost if this is cancelled, so the iteration can continue afterwards.
        """
        while not self._over:
            try:
                event = await self._next()
            except AntiphonError as error:
                if not self._cancelled or error.code not in _LOSSES:
                    raise
                # There is nothing left to continue.
                self._over = True
                return SegmentFinished(FinishReason.CANCELLED, _NO_USAGE, {})
            if self._lease.closed:
                self._delivered = None
            if self._delivered is None or (self._cancelled and isinstance(event, SegmentFinished)):
                return event
            if (told := self._delivered.take(event)) is not None:
                self._count_bytes(self._delivered.size_bytes)
                return told
        raise StopAsyncIteration

    def _count_bytes(self, delivered_bytes: int) -> None:
        """Update the memory budget if the answer has grown by enough."""
        more = delivered_bytes - self._counted_bytes
        if more >= COUNTED_BYTES:
            self._counted_bytes += more
            self._lease.resize(self._lease.size_bytes + more)

    def cancel(self) -> None:
        """Cancel the segment on all stages. See `CallSegment.cancel`."""
        self._cancelled = True
        self._segment.cancel()

    async def _next(self) -> Event:
        """Return the next event of the current attempt."""
        while True:
            try:
                return await anext(self._segment)
            except AntiphonError as error:
                await self._continue(error)

    async def _continue(self, error: AntiphonError) -> None:
        """Start another attempt. If that isn't possible, raise the error."""
        failover, delivered = self._failover, self._delivered
        if delivered is None or self._lease.closed:
            raise error
        if self._cancelled or self._failovers >= failover.most:
            raise error
        detours, role = ReplicaRetries(failover.fleet), error.stage
        if not self._refuses_history(error):
            if error.code not in _LOSSES or role not in self._segment.assignment.replicas:
                raise error
            if not detours.may_be_taken(error, self._segment.assignment, _LOSSES):
                # If only the connection broke, the same replica may soon be available again.
                detours.forget()
        if not self._spend():
            log.warning(
                "%s was lost, but the answer is not continued: too many answers were continued "
                "recently",
                role,
            )
            failover.metrics.failed_over(role, "refused")
            raise error
        began = time.monotonic()
        log.warning("%s; continuing the answer in another session", error)
        # From here on, the request is sent again, and the output is compared with what was already
        # delivered.
        self._lease.keep()
        try:
            await self._attempts(delivered, detours, began)
        except AntiphonError as last:
            failover.metrics.failed_over(role, "failed")
            raise error from last
        failover.metrics.failed_over(role, "continued", time.monotonic() - began)

    async def _attempts(
        self, delivered: DeliveredOutput, detours: ReplicaRetries, began: float
    ) -> None:
        """Try other replicas until all stages have a slot. If none can be found, raises the last
        refusal.
        """
        forgotten = False
        while True:
            before, history = self._segment, delivered.history
            fits = history.size_bytes <= self._failover.max_history_bytes
            self._from_history = fits and not self._anew
            lost = LostSegment(
                before.drawn_seed, before.assignment, history if self._from_history else None
            )
            try:
                self._segment = await self._ask_again(lost, detours.avoided)
                delivered.start_over()
                await self._open()
                return
            except AntiphonError as refusal:
                error = refusal
            if self._cancelled:
                raise error
            if isinstance(error, NotFound) and self._segment.refers and not forgotten:
                # A stage has dropped a recording from an earlier turn. A new session sends all
                # recordings again.
                forgotten = True
                continue
            if self._refuses_history(error):
                if not self._spend():
                    raise error
                continue
            if detours.may_be_taken(error, self._segment.assignment, REFUSALS | _LOSSES):
                continue
            left_s = began + self._wait_s(error) - time.monotonic()
            if left_s <= 0:
                raise error
            await self._wait_changed(min(PAUSE_S, left_s))
            detours.forget()

    def _wait_s(self, error: AntiphonError) -> float:
        """Return the number of seconds to wait before another attempt if all replicas of a stage
        have refused.
        """
        if error.code is ErrorCode.RESOURCE_EXHAUSTED:
            return self._failover.wait_s
        return self._failover.return_s if error.code in _LOSSES and error.stage else 0.0

    def _spend(self) -> bool:
        """Return whether another attempt is allowed. If so, it is counted."""
        failover = self._failover
        if self._failovers >= failover.most or not failover.budget.spend(time.monotonic()):
            return False
        self._failovers += 1
        return True

    def _refuses_history(self, error: AntiphonError) -> bool:
        """Return whether a stage has refused to continue from the output that the client already
        has. In that case, all stages have to compute it again.
        """
        named = error.field.partition(".")[0] == "history"
        if not (self._from_history and named and isinstance(error, InvalidArgument)):
            return False
        self._anew = True
        return True

    async def _open(self) -> None:
        """Wait until the new attempt has all of its slots and all of its references have been
        resolved.
        """
        if self._cancelled:
            self._segment.cancel()
        await self._segment.wait_opened()
        if self._segment.refers:
            await self._segment.wait_begun()

    async def _wait_changed(self, most_s: float) -> None:
        """Wait until the fleet changes, for up to the given time."""
        try:
            async with asyncio.timeout(most_s):
                await self._failover.fleet.wait_changed()
        except TimeoutError:
            return
