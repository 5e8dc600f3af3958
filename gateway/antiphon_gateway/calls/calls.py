"""Turns a client's request into the segment that answers it. This code is shared by all endpoints.

It keeps track of all running sessions, limits their number, and ends them at shutdown.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import replace
from functools import partial

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import NotFound, ResourceExhausted, Unavailable
from antiphon.tracing.span import current_span
from antiphon.tracing.tracing import Tracing
from antiphon.values.segment import Delivery
from antiphon_gateway.admission.admission_request import AdmissionRequest, Urgency
from antiphon_gateway.admission.byte_budget import Holder, memory_of
from antiphon_gateway.admission.reservation import Admission, Reservation, shutting_down
from antiphon_gateway.calls.choices import Choices
from antiphon_gateway.failover.awaited_return import awaited_return
from antiphon_gateway.failover.failover_segment import (
    AskAgain,
    Failover,
    FailoverSegment,
    LostSegment,
)
from antiphon_gateway.failover.replica_retries import ReplicaRetries
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.lineup import Lineup
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.media.attachments import MediaInput
from antiphon_gateway.media.options_in import OptionInput
from antiphon_gateway.media.sent_recordings import SentRecordings
from antiphon_gateway.metrics import Metrics
from antiphon_gateway.orders.order import Order
from antiphon_gateway.orders.prepared import AnswerAttempt, PreparedRequest
from antiphon_gateway.orders.preparing import RequestPreparer
from antiphon_gateway.outputs import AUDIO
from antiphon_gateway.sessions.call_segment import CallSegment
from antiphon_gateway.sessions.session import FIRST_ATTEMPT, Session
from antiphon_gateway.sessions.session_lines import CLOSE_WAIT_S
from antiphon_gateway.sessions.standing_stream import StandingStreams

AskTurn = Callable[[PreparedRequest, AnswerAttempt], Awaitable[CallSegment]]
"""A function that makes an attempt to answer a turn."""


def _wait(_: Reservation) -> None:
    """Do nothing, so that the order simply keeps waiting."""


def _go_on(_: CallSegment) -> None:
    """Do nothing, so that the order is never cancelled."""


class Calls:
    """All running sessions. Requests that exceed the limits are refused. At shutdown, any remaining
    sessions are ended.
    """

    def __init__(
        self,
        fleet: Fleet,
        config: GatewayConfig,
        delivery: Mapping[str, Delivery],
        metrics: Metrics,
        tracing: Tracing | None = None,
    ) -> None:
        self.fleet = fleet
        self.tracing = tracing or Tracing()
        self._config = config
        self.delivery = delivery  # The delivery of the deployment, by edge.
        self.memory = memory_of(config, metrics)
        self.media = MediaInput.of(config, self.memory)
        self._preparer = RequestPreparer(fleet, config, self.media)
        self._standing = StandingStreams(metrics.suspended)
        self._live: set[Session] = set()
        self.admission = Admission(config, metrics)
        fleet.on_resize(self.admission.resize)
        self._failover = Failover(fleet, config, metrics)
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """The number of calls that were admitted and haven't ended."""
        return self.admission.in_flight

    @property
    def closing(self) -> bool:
        """Whether the gateway is shutting down."""
        return self._stopping.is_set()

    def check_open(self) -> None:
        """Raise `Unavailable` if the gateway is shutting down."""
        if self.closing:
            raise shutting_down()

    def check_model(self, name: str) -> None:
        """Raise `NotFound` unless the name is empty or refers to the served model. Aliases of the
        model are allowed.
        """
        self._preparer.check_model(name)

    def check_options(self, options: Mapping[str, OptionInput]) -> None:
        """Validate options before they are used in a request. Raises the same errors as
        `RequestPreparer.check_options`.
        """
        self._preparer.check_options(options)

    async def prepare(
        self,
        order: Order,
        *,
        sent: SentRecordings | None = None,
        heard: bool = False,
        is_turn: bool = False,
    ) -> PreparedRequest:
        """Validate and decode an order, so that its answer can be requested. See
        `RequestPreparer.prepare` for the other arguments.

        The result is released by `turn` or `choices`. If neither of these is called, the caller
        must release it. Files are read only if the request could be admitted or queued at this
        point. Raises the errors of `RequestPreparer` and `Reservation.granted`, and `Unavailable`
        at shutdown.
        """
        self.check_open()
        most_s = min(order.start_within_s, self._failover.return_s)
        checked = await awaited_return(self.fleet, lambda: self._preparer.check(order), most_s)
        self.check_open()
        if any(order.attachments.fields.values()) and not order.recordings_alone:
            request = self._admission_request(order, checked.lineup, order.size_bytes)
            await self.admission.check_room(request, self.fleet.slots)
        prepared = await self._preparer.prepare(checked, sent=sent, heard=heard, is_turn=is_turn)
        if self.closing:
            prepared.media.release()
        self.check_open()
        return prepared

    @asynccontextmanager
    async def answer(
        self, order: Order, on_wait: Callable[[Reservation], None] = _wait
    ) -> AsyncIterator[FailoverSegment]:
        """Return a context manager for the segment that answers an order. Its session has no other
        segments.

        Raises the errors of `prepare` and `choices`.
        """
        prepared = await self.prepare(order)
        async with AsyncExitStack() as held:
            held.enter_context(_released(prepared))
            (segment,) = await self._begin(prepared, 1, on_wait, held)
            yield segment

    @asynccontextmanager
    async def choices(
        self, prepared: PreparedRequest, on_wait: Callable[[Reservation], None] = _wait
    ) -> AsyncIterator[FailoverSegment | Choices]:
        """Return a context manager for the segments that answer a request, each of them in its own
        session.

        If there is only one segment, its events aren't wrapped. All segments already have their
        slots. If the slots aren't available immediately, `on_wait` is called. It can give up the
        request. Raises `ResourceExhausted` if the slots don't become available in time,
        `InvalidArgument` if there will never be enough slots, `GivenUp` if the request was given
        up, `Unavailable` at shutdown, and the errors of `session` and `Session.ask`.
        """
        async with AsyncExitStack() as held:
            held.enter_context(_released(prepared))
            segments = await self._begin(prepared, prepared.order.choices, on_wait, held)
            if len(segments) == 1:
                yield segments[0]
            else:
                yield await held.enter_async_context(Choices(segments))

    @asynccontextmanager
    async def turn(
        self,
        prepared: PreparedRequest,
        ask: AskTurn,
        on_wait: Callable[[Reservation], None] = _wait,
        on_open: Callable[[CallSegment], None] = _go_on,
    ) -> AsyncIterator[FailoverSegment]:
        """Return a context manager for the segment that answers a turn of a conversation. `ask`
        requests the segment in the conversation's session.

        The segment already has all of its slots. If another replica could take over, the segment
        has also produced its first output. Before that, `on_open` is called with every segment that
        is requested. It can cancel the segment. Raises the errors of `choices`.
        """
        retries = ReplicaRetries(self.fleet)
        with _released(prepared), self._place(prepared, 1, Urgency.TURN) as place:
            while True:
                await _granted(place, prepared, on_wait)
                on_freed = _once(place.attempt())
                attempt = AnswerAttempt(place.left_s, avoided=retries.avoided, on_freed=on_freed)
                segment = await ask(prepared, attempt)
                try:
                    await segment.wait_opened()
                    self.admission.opened(place)
                    on_open(segment)
                    if segment.refers or retries.there_are(segment.assignment):
                        await segment.wait_begun()
                    break
                except NotFound:
                    # A stage has dropped a recording from an earlier turn. A new session sends all
                    # recordings again.
                    if not segment.refers:
                        raise
                except (ResourceExhausted, Unavailable) as error:
                    if not retries.go_on(error, segment, place):
                        raise

            async def ask_again(lost: LostSegment, avoided: Collection[Replica]) -> CallSegment:
                attempt = AnswerAttempt(
                    place.left_s,
                    avoided=avoided,
                    drawn_seed=lost.drawn_seed,
                    history=lost.history,
                    on_freed=on_freed,
                )
                return await ask(prepared, attempt)

            self._keep(prepared)
            yield FailoverSegment(segment, self._failover, ask_again, prepared.media.lease)

    async def _begin(
        self,
        prepared: PreparedRequest,
        count: int,
        on_wait: Callable[[Reservation], None],
        held: AsyncExitStack,
    ) -> list[FailoverSegment]:
        """Return `count` segments that answer a request. Their resources are added to `held`."""
        place = held.enter_context(self._place(prepared, count))
        retries = ReplicaRetries(self.fleet)
        while True:
            await _granted(place, prepared, on_wait)
            segment: CallSegment | None = None
            try:
                async with AsyncExitStack() as sessions:
                    asked = await self._asked(prepared, place, sessions, retries.avoided)
                    for segment in asked:
                        await segment.wait_opened()
                    self.admission.opened(place)
                    for segment in asked:
                        # If another replica could take over, wait until the answer has produced its
                        # first output.
                        if retries.there_are(segment.assignment):
                            await segment.wait_begun()
                    self._keep(prepared)
                    await held.enter_async_context(sessions.pop_all())
                    return [
                        FailoverSegment(segment, self._failover, again, prepared.media.lease)
                        for segment, again in asked.items()
                    ]
            except (ResourceExhausted, Unavailable) as error:
                if segment is None or not retries.go_on(error, segment, place):
                    raise

    async def _asked(
        self,
        prepared: PreparedRequest,
        place: Reservation,
        sessions: AsyncExitStack,
        avoided: Collection[Replica],
    ) -> dict[CallSegment, AskAgain]:
        """Request a segment for each choice, in separate sessions. Returns the segments, each with
        a function that requests it again.
        """
        asked: dict[CallSegment, AskAgain] = {}
        on_freed = place.attempt()
        for choice in range(place.request.count):
            own = await sessions.enter_async_context(AsyncExitStack())
            first = AnswerAttempt(choice=choice, avoided=avoided, on_freed=_once(on_freed))
            again = partial(self._ask_again, prepared, place, own, first)
            asked[await self._ask(prepared, place, own, first)] = again
        return asked

    async def _ask_again(
        self,
        prepared: PreparedRequest,
        place: Reservation,
        own: AsyncExitStack,
        first: AnswerAttempt,
        lost: LostSegment,
        avoided: Collection[Replica],
    ) -> CallSegment:
        """Leave the session of a segment that was lost and request the same answer in a new
        session.
        """
        await own.aclose()
        attempt = replace(
            first,
            avoided=avoided,
            preferred=lost.assignment,
            drawn_seed=lost.drawn_seed,
            history=lost.history,
        )
        return await self._ask(prepared, place, own, attempt)

    async def _ask(
        self,
        prepared: PreparedRequest,
        place: Reservation,
        own: AsyncExitStack,
        attempt: AnswerAttempt,
    ) -> CallSegment:
        """Send a request in a new session, which is added to `own`."""
        session = await own.enter_async_context(self.session(prepared, attempt))
        return await session.ask(prepared, replace(attempt, deadline_s=place.left_s), last=True)

    def _keep(self, prepared: PreparedRequest) -> None:
        """Keep a request so that it can be sent again, until its memory is needed for something
        else.

        Without failover, the request's files are released now. The stages already have them, and
        the call may take a long time.
        """
        if self._failover.most:
            prepared.media.lease.spare(prepared.media.release)
        else:
            prepared.media.release()

    def _place(
        self, prepared: PreparedRequest, count: int, urgency: Urgency | None = None
    ) -> AbstractContextManager[Reservation]:
        """Return a reservation for `count` answers to a request."""
        self.check_open()
        request = self._admission_request(
            prepared.order, prepared.lineup, prepared.size_bytes, count, urgency
        )
        return self.admission.place(request, self.fleet.slots)

    def _admission_request(
        self,
        order: Order,
        lineup: Lineup,
        size_bytes: int,
        count: int | None = None,
        urgency: Urgency | None = None,
    ) -> AdmissionRequest:
        if urgency is None:
            urgency = Urgency.AUDIO if AUDIO in lineup.outputs else Urgency.TEXT
        return AdmissionRequest(
            roles=frozenset(lineup.roles),
            urgency=urgency,
            count=order.choices if count is None else count,
            size_bytes=size_bytes,
            start_within_s=order.start_within_s,
            finish_within_s=min(order.timeout_s, self._config.limits.request_timeout_s),
            key=order.key,
            priority=order.priority,
        )

    @asynccontextmanager
    async def session(
        self, prepared: PreparedRequest, attempt: AnswerAttempt = FIRST_ATTEMPT
    ) -> AsyncIterator[Session]:
        """Return a context manager for a session on stages that produce the requested outputs.

        If the request has functions, the session supports function calls. It doesn't have its own
        reservation. The first attempt waits for a stage that has just been lost. Raises the errors
        of `Fleet.assign`, and `Unavailable` at shutdown.
        """
        self.check_open()
        order = prepared.order
        is_first = not attempt.avoided and attempt.preferred is None
        lineup, assignment = await awaited_return(
            self.fleet,
            lambda: self.fleet.assign(
                order.outputs,
                tool_calls=bool(order.tools),
                avoided=attempt.avoided,
                preferred=attempt.preferred,
                like=prepared.lineup,
            ),
            self._failover.return_s if is_first else 0.0,
        )
        with assignment:
            self.check_open()  # The wait may have lasted until the shutdown.
            model = self.fleet.model_name()
            session = Session(
                lineup,
                assignment,
                model,
                self._config,
                self.delivery,
                self._preparer,
                self._standing.open_line,
            )
            self._live.add(session)
            try:
                async with session:
                    yield session
            finally:
                self._live.discard(session)

    async def wait_idle(self) -> None:
        """Wait until no requests are running or waiting."""
        await self.admission.idle.wait()

    def refuse(self) -> None:
        """Stop admitting requests, including those that are already waiting."""
        self._stopping.set()
        self.admission.close()

    async def wait_closing(self) -> None:
        """Wait until the gateway starts to shut down."""
        await self._stopping.wait()

    def force_stop(self) -> None:
        """End all running requests now, instead of waiting for them to drain."""
        self._hurried.set()

    async def wait_hurried(self) -> None:
        """Wait until `force_stop` is called."""
        await self._hurried.wait()

    async def close(self, drain_s: float) -> None:
        """Stop admitting requests. Any that are still running after `drain_s` seconds, or when
        `force_stop` is called, end with `Unavailable`.
        """
        self.refuse()
        await _wait_first((self.admission.idle, self._hurried), drain_s)
        for session in self._live:
            session.end_with(shutting_down())
        await _wait_first((self.admission.idle,), CLOSE_WAIT_S)
        await self._standing.close()
        await self.media.close()


@contextmanager
def _released(prepared: PreparedRequest) -> Iterator[None]:
    """Release a request when the context ends."""
    try:
        yield
    finally:
        prepared.media.release()


async def _granted(
    place: Reservation, prepared: PreparedRequest, on_wait: Callable[[Reservation], None]
) -> None:
    """Wait until a request can start. While the request waits, its memory counts as a waiting
    request's memory.
    """
    lease = prepared.media.lease
    if place.waits:
        lease.move(Holder.WAITING)
        on_wait(place)
    with current_span.get().child("admission"):
        await place.granted()
    lease.move(Holder.ANSWERING)


def _once(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Wrap a callback so that it is called only once per role, even if there are several
    attempts.
    """
    told: set[str] = set()

    def tell_once(role: str) -> None:
        if role not in told:
            told.add(role)
            tell(role)

    return tell_once


async def _wait_first(events: Iterable[asyncio.Event], timeout_s: float) -> None:
    """Wait until one of the events is set or the time is up."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
