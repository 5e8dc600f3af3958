"""From what a client asked for to the segment that answers it, the same for every endpoint.

The only owner of all live sessions: how many there may be, and their end at shutdown.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import replace
from functools import partial
from typing import Any

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import NotFound, ResourceExhausted, Unavailable
from antiphon.tracing.span import current_span
from antiphon.tracing.tracing import Tracing
from antiphon.values.segment import Delivery
from antiphon_gateway.admission.admission_request import AdmissionRequest, Urgency
from antiphon_gateway.admission.byte_budget import Holder, memory_of
from antiphon_gateway.admission.reservation import Admission, Reservation, shutting_down
from antiphon_gateway.calls.choices import Choices
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
"""Makes an attempt at a turn."""


def _wait(_: Reservation) -> None:
    """Wait patiently."""


def _go_on(_: CallSegment) -> None:
    """Do nothing: the order was not canceled."""


class Calls:
    """All live sessions. Refuses what is too much and ends what is left at shutdown."""

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
        self.delivery = delivery  # the deployment's, by edge
        self.memory = memory_of(config, metrics)
        self.media = MediaInput.of(config, self.memory)
        self._preparer = RequestPreparer(fleet, config, self.media)
        self._standing = StandingStreams()
        self._live: set[Session] = set()
        self.admission = Admission(config, metrics)
        fleet.on_resize(self.admission.resize)
        self._failover = Failover(fleet, config, metrics)
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Calls that are admitted and not over."""
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
        """Raise `NotFound` unless the name is empty, the served model's or an alias of it."""
        self._preparer.check_model(name)

    def check_options(self, options: Mapping[str, OptionInput]) -> None:
        """Check options before a request with them. Raises what `RequestPreparer.check_options`
        raises."""
        self._preparer.check_options(options)

    async def prepare(
        self,
        order: Order,
        *,
        sent: SentRecordings | None = None,
        heard: bool = False,
        is_turn: bool = False,
    ) -> PreparedRequest:
        """Check and decode an order, for an answer that is asked for next. For the rest see
        `RequestPreparer.prepare`. `turn` and `choices` release it; so must others that have it.

        Files are read only of a request that may wait for its slots. Raises what `RequestPreparer`
        raises, `ResourceExhausted` and `InvalidArgument` as `Reservation.granted` does, and
        `Unavailable` at shutdown.
        """
        self.check_open()
        checked = self._preparer.check(order)
        if any(order.attachments.fields.values()) and not order.recordings_alone:
            request = self._admission_request(order, checked.lineup, order.size_bytes)
            await self.admission.check_room(request, self.fleet.slots)
        prepared = await self._preparer.prepare(checked, sent=sent, heard=heard, is_turn=is_turn)
        if self.closing:
            prepared.media.release()
        self.check_open()
        return prepared

    def answer(
        self, order: Order, on_wait: Callable[[Reservation], None] = _wait
    ) -> AbstractAsyncContextManager[FailoverSegment]:
        """The segment that answers an order, the only one of its session.

        Raises what `prepare` and `choices` raise.
        """
        return self._single(self.prepare(order), on_wait)

    @asynccontextmanager
    async def _single(
        self,
        preparing: Coroutine[Any, Any, PreparedRequest],
        on_wait: Callable[[Reservation], None],
    ) -> AsyncIterator[FailoverSegment]:
        prepared = await preparing
        async with AsyncExitStack() as held:
            held.enter_context(_released(prepared))
            (segment,) = await self._begin(prepared, 1, on_wait, held)
            yield segment

    @asynccontextmanager
    async def choices(
        self, prepared: PreparedRequest, on_wait: Callable[[Reservation], None] = _wait
    ) -> AsyncIterator[FailoverSegment | Choices]:
        """The segments that answer a request, each in a session of its own; of one the events are
        plain. They have all their slots; `on_wait` is called when these are not there at once,
        and may give up.

        Raises `ResourceExhausted` when they do not come in time, `InvalidArgument` when there never
        are so many, `GivenUp`, `Unavailable` at shutdown, and what `session` and `Session.ask`
        raise.
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
        """The segment that answers a turn of a conversation, which `ask` asks of a session of its
        own. It has all its slots, and it has begun where another replica could have taken over;
        `on_open` is called before that, with each that is asked for, and may cancel it. Raises what
        `choices` raises."""
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
                    # A recording of an earlier turn was forgotten; a new session sends all again.
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
        """So many segments that answer a request; `held` keeps what they have."""
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
                        # Where another replica could take over, until there is something of the
                        # answer.
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
        """A segment for each choice, in a session of its own, and how it is asked for once more."""
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
        """Leave the session of a lost segment, and ask for the same answer in another one."""
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
        """Ask for a request in a new session, which `own` gets."""
        session = await own.enter_async_context(self.session(prepared, attempt))
        return await session.ask(prepared, replace(attempt, deadline_s=place.left_s), last=True)

    def _keep(self, prepared: PreparedRequest) -> None:
        """Keep a request to be asked for once more, until others need its bytes.

        Without failover its files are dropped now: the stages have them, and the call may be long.
        """
        if self._failover.most:
            prepared.media.lease.spare(prepared.media.release)
        else:
            prepared.media.release()

    def _place(
        self, prepared: PreparedRequest, count: int, urgency: Urgency | None = None
    ) -> AbstractContextManager[Reservation]:
        """A place for so many answers to a request."""
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
        """A session on stages that make what a request wants, open within the context; functions
        may be called in it if the request has any.

        It has no place yet: see `turn`. Raises what `Fleet.assign` raises, and `Unavailable` at
        shutdown.
        """
        self.check_open()
        order = prepared.order
        lineup, assignment = self.fleet.assign(
            order.outputs,
            tool_calls=bool(order.tools),
            avoided=attempt.avoided,
            preferred=attempt.preferred,
            like=prepared.lineup,
        )
        with assignment:
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
        """Return when no request is in flight, and none waits to be."""
        await self.admission.idle.wait()

    def refuse(self) -> None:
        """Admit nothing more from now on, not even who waits for it."""
        self._stopping.set()
        self.admission.close()

    async def wait_closing(self) -> None:
        """Return when the gateway starts to shut down."""
        await self._stopping.wait()

    def force_stop(self) -> None:
        """End what runs now, without the rest of the time that it was given."""
        self._hurried.set()

    async def wait_hurried(self) -> None:
        """Return when someone is in a hurry."""
        await self._hurried.wait()

    async def close(self, drain_s: float) -> None:
        """Admit nothing more; after `drain_s`, or when hurried, end the rest with `Unavailable`."""
        self.refuse()
        await _wait_first((self.admission.idle, self._hurried), drain_s)
        for session in self._live:
            session.end_with(shutting_down())
        await _wait_first((self.admission.idle,), CLOSE_WAIT_S)
        await self._standing.close()
        await self.media.close()


@contextmanager
def _released(prepared: PreparedRequest) -> Iterator[None]:
    """Release a request at the end of the block."""
    try:
        yield
    finally:
        prepared.media.release()


async def _granted(
    place: Reservation, prepared: PreparedRequest, on_wait: Callable[[Reservation], None]
) -> None:
    """Return when a request may begin. Its bytes count where it is."""
    lease = prepared.media.lease
    if place.waits:
        lease.move(Holder.WAITING)
        on_wait(place)
    with current_span.get().child("admission"):
        await place.granted()
    lease.move(Holder.ANSWERING)


def _once(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Wrap a callback so that it is called once per role, regardless of attempts."""
    told: set[str] = set()

    def tell_once(role: str) -> None:
        if role not in told:
            told.add(role)
            tell(role)

    return tell_once


async def _wait_first(events: Iterable[asyncio.Event], timeout_s: float) -> None:
    """Return when one of the events is set, or the time is over."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
