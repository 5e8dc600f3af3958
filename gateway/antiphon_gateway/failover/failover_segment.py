"""A segment that continues after the loss of a replica.

The whole session is opened again, with another replica in place of the lost one and the same
replicas elsewhere. The same request is sent with the same seeds. Stages that can continue from the
client's output receive it with the opening; the others compute it again, and so do all stages if
one refuses it. The stages send the output again, and the part that the client has is dropped, so
that the client receives one answer.
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
"""Until replicas that were full are asked again, if nothing is heard of them before."""

COUNTED_BYTES = 16 << 10
"""What is kept of an answer is counted whenever it has grown by so much."""

_LOSSES = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.DATA_LOSS})
"""What is said of a replica, or of the way to it, and not of the request."""
_NO_USAGE = SegmentUsage(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class LostSegment:
    """What a lost segment was asked for with, and what its client has of it."""

    drawn_seed: int
    assignment: Assignment
    history: History | None


AskAgain = Callable[[LostSegment, Collection[Replica]], Awaitable[CallSegment]]
"""Leaves the session of a lost segment and asks for the same in another one, which is not to run
on any of these replicas."""


class Failover:
    """What all segments of a gateway share that may be continued."""

    def __init__(self, fleet: Fleet, config: GatewayConfig, metrics: Metrics) -> None:
        self.fleet = fleet
        self.most = config.failover.failovers
        self.wait_s = config.failover.wait_s
        self.return_s = config.failover.return_s
        self.max_history_bytes = config.failover.max_history_bytes
        self.budget = FailoverBudget(per_minute=config.failover.failovers_per_minute)
        self.metrics = metrics


class FailoverSegment:
    """The events of one segment over all attempts, an async iterator as `CallSegment` is.

    `lease` counts the request, and what is kept of the answer. A segment whose lease is closed
    cannot be continued.
    """

    def __init__(
        self, segment: CallSegment, failover: Failover, ask_again: AskAgain, lease: ByteLease
    ) -> None:
        self._segment = segment
        self._failover = failover
        self._ask_again = ask_again
        self._lease = lease
        self._counted_bytes = 0
        self._delivered = DeliveredOutput()
        self._failovers = 0
        self._cancelled = self._over = False
        # Whether the attempt goes on from a history, and whether a stage has refused one.
        self._from_history = self._anew = False

    def __aiter__(self) -> FailoverSegment:
        return self

    async def __anext__(self) -> Event:
        """The next event. Raises `AntiphonError`.

        Cancelling loses nothing: the segment can be iterated further or left.
        """
        while not self._over:
            try:
                event = await self._next()
            except AntiphonError as error:
                if not self._cancelled or error.code not in _LOSSES:
                    raise
                # Nobody waits for more of it.
                self._over = True
                return SegmentFinished(FinishReason.CANCELLED, _NO_USAGE, {})
            if self._lease.closed:
                # It gave way, before any loss, or was never kept.
                self._delivered = DeliveredOutput()
                return event
            if self._cancelled and isinstance(event, SegmentFinished):
                return event
            if (told := self._delivered.take(event)) is not None:
                self._count_delivered()
                return told
        raise StopAsyncIteration

    def _count_delivered(self) -> None:
        """Count what is kept of the answer, in steps."""
        more = self._delivered.size_bytes - self._counted_bytes
        if more >= COUNTED_BYTES:
            self._counted_bytes += more
            self._lease.resize(self._lease.size_bytes + more)

    def cancel(self) -> None:
        """Stop the segment on all stages; see `CallSegment.cancel`."""
        self._cancelled = True
        self._segment.cancel()

    async def _next(self) -> Event:
        """The next event of the attempt that is being made."""
        while True:
            try:
                return await anext(self._segment)
            except AntiphonError as error:
                await self._continue(error)

    async def _continue(self, error: AntiphonError) -> None:
        """Have another attempt make the segment. Raises the error if there can be none."""
        failover = self._failover
        if self._lease.closed or self._cancelled or self._failovers >= failover.most:
            raise error
        detours, role = ReplicaRetries(failover.fleet), error.stage
        if not self._refuses_history(error):
            if error.code not in _LOSSES or role not in self._segment.assignment.replicas:
                raise error
            if not detours.may_be_taken(error, self._segment.assignment, _LOSSES):
                # It may be back soon, which one whose connection broke is.
                detours.forget()
        if not self._spend():
            log.warning("%s is lost, and too many answers were continued lately", role)
            failover.metrics.failed_over(role, "refused")
            raise error
        began = time.monotonic()
        log.warning("%s; the answer is continued in another session", error)
        # It is asked for once more, and later output is compared with what was delivered.
        self._lease.keep()
        try:
            await self._attempts(detours, began)
        except AntiphonError as last:
            failover.metrics.failed_over(role, "failed")
            raise error from last
        failover.metrics.failed_over(role, "continued", time.monotonic() - began)

    async def _attempts(self, detours: ReplicaRetries, began: float) -> None:
        """Ask one replica after the other until all stages have a slot. Raises the last refusal."""
        forgotten = False
        while True:
            before, history = self._segment, self._delivered.history
            fits = history.size_bytes <= self._failover.max_history_bytes
            self._from_history = fits and not self._anew
            lost = LostSegment(
                before.drawn_seed, before.assignment, history if self._from_history else None
            )
            try:
                self._segment = await self._ask_again(lost, detours.avoided)
                await self._open()
                return
            except AntiphonError as refusal:
                error = refusal
            if self._cancelled:
                raise error
            if isinstance(error, NotFound) and self._segment.refers and not forgotten:
                # Of a recording of an earlier turn; a new session sends all again.
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
        """Return the wait before another attempt, if all replicas of a stage have refused."""
        if error.code is ErrorCode.RESOURCE_EXHAUSTED:
            return self._failover.wait_s
        return self._failover.return_s if error.code in _LOSSES and error.stage else 0.0

    def _spend(self) -> bool:
        """Whether there may be one more attempt, which then counts."""
        failover = self._failover
        if self._failovers >= failover.most or not failover.budget.spend(time.monotonic()):
            return False
        self._failovers += 1
        return True

    def _refuses_history(self, error: AntiphonError) -> bool:
        """Return whether a stage refuses the client's output; all stages then compute it again."""
        named = error.field.partition(".")[0] == "history"
        if not (self._from_history and named and isinstance(error, InvalidArgument)):
            return False
        self._anew = True
        return True

    async def _open(self) -> None:
        """Wait until the new attempt has its slots, and knows what it refers to."""
        self._delivered.start_over()
        if self._cancelled:
            self._segment.cancel()
        await self._segment.wait_opened()
        if self._segment.refers:
            await self._segment.wait_begun()

    async def _wait_changed(self, most_s: float) -> None:
        """Return when something has changed in the fleet, or after that time."""
        try:
            async with asyncio.timeout(most_s):
                await self._failover.fleet.wait_changed()
        except TimeoutError:
            return
