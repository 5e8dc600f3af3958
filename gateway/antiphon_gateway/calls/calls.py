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
from types import MappingProxyType

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, NotFound, ResourceExhausted, Unavailable
from antiphon.segment import Delivery
from antiphon.tracing.span import current_span
from antiphon.tracing.tracing import Tracing
from antiphon_gateway.byte_budget import uploads_of
from antiphon_gateway.calls.admission_request import AdmissionRequest, Urgency
from antiphon_gateway.calls.choices import Choices, order_of_choice
from antiphon_gateway.calls.failover.segment import AskAgain, Failover, FailoverSegment, LostSegment
from antiphon_gateway.calls.order import Order
from antiphon_gateway.calls.replica_retries import ReplicaRetries
from antiphon_gateway.calls.reservation import Admission, Reservation, shutting_down
from antiphon_gateway.calls.segment import CallSegment
from antiphon_gateway.calls.session import CLOSE_WAIT_S, Session
from antiphon_gateway.fleet.assignment import Assignment
from antiphon_gateway.fleet.fleet import NONE_AVOIDED, Fleet
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.media.attachments import MediaInput, name_field
from antiphon_gateway.metrics import Metrics
from antiphon_gateway.outputs import AUDIO

AskTurn = Callable[[Order, Callable[[str], None], Collection[Replica]], Awaitable[CallSegment]]
"""Asks for a segment, and tells the role of each stage that is done with it. It is not to run on
any of these replicas."""


def _wait(_: Reservation) -> None:
    """Wait patiently."""


def _go_on(_: CallSegment) -> None:
    """Nobody has cancelled it meanwhile."""


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
        self.uploads = uploads_of(config)
        self.media = MediaInput.of(config, self.uploads, metrics.refuse)
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
        """Whether the gateway was told to stop."""
        return self._stopping.is_set()

    def check_open(self) -> None:
        """Raise `Unavailable` when the gateway was told to stop."""
        if self.closing:
            raise shutting_down()

    def check_model(self, name: str) -> None:
        """Raise `NotFound` unless the name is empty, the served model's or an alias of it."""
        served = self.fleet.model_name()
        if name not in ("", served) and not self.fleet.names.has_model(name):
            raise NotFound(f"no model {name!r}; there is: {served}", field="model")

    @asynccontextmanager
    async def answer(
        self, order: Order, on_wait: Callable[[Reservation], None] = _wait
    ) -> AsyncIterator[FailoverSegment]:
        """The segment that answers an order, the only one of its session.

        Raises what `choices` raises.
        """
        async with AsyncExitStack() as held:
            beginning = self._begin([order], on_wait, held)
            # Attachments may be large, and the call may be long: see `_continued`.
            del order
            (segment,) = await beginning
            yield segment

    @asynccontextmanager
    async def choices(
        self, order: Order, on_wait: Callable[[Reservation], None] = _wait
    ) -> AsyncIterator[FailoverSegment | Choices]:
        """The segments that answer an order, each in a session of its own; of one the events are
        plain. They have all their slots; `on_wait` is called when these are not there at once,
        and may give up.

        Raises `ResourceExhausted` when they do not come in time, `InvalidArgument` when there never
        are so many, `GivenUp`, `Unavailable` at shutdown, and what `session` and `Session.ask`
        raise.
        """
        async with AsyncExitStack() as held:
            orders = [order_of_choice(order, number) for number in range(order.choices)]
            del order
            segments = await self._begin(orders, on_wait, held)
            if len(segments) == 1:
                yield segments[0]
            else:
                yield await held.enter_async_context(Choices(segments))

    @asynccontextmanager
    async def turn(
        self,
        order: Order,
        ask: AskTurn,
        on_wait: Callable[[Reservation], None] = _wait,
        on_open: Callable[[CallSegment], None] = _go_on,
    ) -> AsyncIterator[FailoverSegment]:
        """The segment that answers a turn of a conversation, which `ask` asks of a session of its
        own, telling who is done with it. It has all its slots, and it has begun where another
        replica could have taken over; `on_open` is told before that, of each that is asked for, and
        may cancel it. Raises what `choices` raises."""
        orders = [order]
        del order
        detours = ReplicaRetries(self.fleet)
        with self._place(orders, Urgency.TURN) as place:
            while True:
                if place.waits:
                    on_wait(place)
                with current_span.get().child("admission"):
                    await place.granted()
                order, on_freed = _with_time(orders[0], place), _once(place.attempt())
                asking = ask(order, on_freed, detours.avoided)
                del order
                segment = await asking
                try:
                    await segment.wait_opened()
                    self.admission.opened(place)
                    on_open(segment)
                    if segment.refers or detours.there_are(segment.assignment):
                        await segment.wait_begun()
                    break
                except NotFound:
                    # A recording of an earlier turn was forgotten; a new session sends all again.
                    if not segment.refers:
                        raise
                except (ResourceExhausted, Unavailable) as error:
                    if not detours.go_on(error, segment, place):
                        raise
            async with AsyncExitStack() as keeping:
                kept = self._kept(orders, keeping)

                async def ask_again(lost: LostSegment, avoided: Collection[Replica]) -> CallSegment:
                    return await ask(lost.order(_with_time(kept[0], place)), on_freed, avoided)

                yield FailoverSegment(segment, self._failover, ask_again if kept else None)

    async def _begin(
        self, orders: list[Order], on_wait: Callable[[Reservation], None], held: AsyncExitStack
    ) -> list[FailoverSegment]:
        """The segments that answer orders, which are taken out; `held` keeps what they have."""
        place = held.enter_context(self._place(orders))
        detours = ReplicaRetries(self.fleet)
        while True:
            if place.waits:
                on_wait(place)
            with current_span.get().child("admission"):
                await place.granted()
            segment: CallSegment | None = None
            try:
                async with AsyncExitStack() as sessions:
                    asked = await self._asked(orders, place, sessions, detours.avoided)
                    for segment in asked:
                        await segment.wait_opened()
                    self.admission.opened(place)
                    for segment in asked:
                        # Where another replica could take over, until there is something of the
                        # answer.
                        if detours.there_are(segment.assignment):
                            await segment.wait_begun()
                    kept = self._kept(orders, held)
                    await held.enter_async_context(sessions.pop_all())
                    return [
                        FailoverSegment(segment, self._failover, again if kept else None)
                        for segment, again in asked.items()
                    ]
            except (ResourceExhausted, Unavailable) as error:
                if segment is None or not detours.go_on(error, segment, place):
                    raise

    async def _asked(
        self,
        orders: Iterable[Order],
        place: Reservation,
        sessions: AsyncExitStack,
        avoided: Collection[Replica],
    ) -> dict[CallSegment, AskAgain]:
        """A segment for each order, in a session of its own, and how it is asked for once more."""
        asked: dict[CallSegment, AskAgain] = {}
        on_freed = place.attempt()
        for order in orders:
            own = await sessions.enter_async_context(AsyncExitStack())
            ask = partial(self._ask, order, place, own, _once(on_freed))
            asked[await ask(None, avoided)] = ask
        return asked

    async def _ask(
        self,
        order: Order,
        place: Reservation,
        own: AsyncExitStack,
        on_freed: Callable[[str], None],
        lost: LostSegment | None,
        avoided: Collection[Replica],
    ) -> CallSegment:
        """Ask for the order in a new session, which `own` gets; of a `lost` segment, for the same
        answer."""
        await own.aclose()
        order = order if lost is None else lost.order(order)
        session = await own.enter_async_context(
            self.session(
                order.outputs,
                order.model,
                order.field_names,
                calling=bool(order.tools),
                avoided=avoided,
                preferred=None if lost is None else lost.assignment,
            )
        )
        return await session.ask(_with_time(order, place), last=True, on_freed=on_freed)

    def _kept(self, orders: list[Order], keeping: AsyncExitStack) -> tuple[Order, ...]:
        """Take the orders out, and keep them until `keeping` is left, to ask for them once more.

        None, if there is no room for them: attachments may be large, and the call may be long.
        """
        kept, budget = tuple(orders), self._failover.budget
        orders.clear()
        size_bytes = sum(order.size_bytes for order in kept)
        if not self._failover.most or not budget.keep(size_bytes):
            return ()
        keeping.callback(budget.drop, size_bytes)
        return kept

    def _place(
        self, orders: list[Order], urgency: Urgency | None = None
    ) -> AbstractContextManager[Reservation]:
        """A place for one order, or several that differ in nothing that counts here."""
        order = orders[0]
        with self._naming(order.model, order.field_names):
            lineup = self.fleet.line_up(order.outputs)
        if urgency is None:
            urgency = Urgency.AUDIO if AUDIO in lineup.outputs else Urgency.TEXT
        request = AdmissionRequest(
            roles=frozenset(lineup.roles),
            urgency=urgency,
            count=len(orders),
            size_bytes=order.size_bytes,
            start_within_s=order.start_within_s,
            finish_within_s=min(order.timeout_s, self._config.request_timeout_s),
            key=order.key,
            priority=order.priority,
        )
        return self.admission.place(request, self.fleet.slots)

    @contextmanager
    def _naming(self, model: str, field_names: Mapping[str, str]) -> Iterator[None]:
        """Around a line-up for that model: errors have the client's names of fields."""
        self.check_open()
        self.check_model(model)
        try:
            yield
        except AntiphonError as error:
            name_field(error, field_names)
            raise

    @asynccontextmanager
    async def session(
        self,
        outputs: frozenset[str],
        model: str = "",
        field_names: Mapping[str, str] = MappingProxyType({}),
        *,
        calling: bool = False,
        avoided: Collection[Replica] = NONE_AVOIDED,
        preferred: Assignment | None = None,
    ) -> AsyncIterator[Session]:
        """A session on the stages that make the outputs (all, if empty), open within the context.
        Functions may be called in one that is `calling`. For `avoided` and `preferred` see
        `Fleet.assign`.

        It has no place yet: see `turn`. Raises `NotFound` for another model, `Unavailable` at
        shutdown and when a stage is down, `NotImplementedYet` for an output that the model does
        not make, by its name among the client's.
        """
        with self._naming(model, field_names):
            lineup, assignment = self.fleet.assign(
                outputs, tool_calls=calling, avoided=avoided, preferred=preferred
            )
        with assignment:
            session = Session(
                lineup, assignment, self.fleet, self._config, self.delivery, self.media
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
        """Return when the gateway was told to stop."""
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
        await self.media.close()


def _once(tell: Callable[[str], None]) -> Callable[[str], None]:
    """The same, but that each role is told once, however often the segment is made."""
    told: set[str] = set()

    def tell_once(role: str) -> None:
        if role not in told:
            told.add(role)
            tell(role)

    return tell_once


def _with_time(order: Order, place: Reservation) -> Order:
    """The order with what is left of its time."""
    return replace(order, timeout_s=place.left_s)


async def _wait_first(events: Iterable[asyncio.Event], timeout_s: float) -> None:
    """Return when one of the events is set, or the time is over."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
