"""The session behind a conversation: kept from turn to turn, replaced when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from antiphon.errors import AntiphonError
from antiphon.tracing.span import TraceSpan, given_traceparent
from antiphon_gateway.admission.reservation import Reservation
from antiphon_gateway.calls.calls import Calls
from antiphon_gateway.conversations.live_turn import LiveTurn
from antiphon_gateway.failover.failover_segment import FailoverSegment
from antiphon_gateway.fleet.assignment import Assignment
from antiphon_gateway.orders.order import Order
from antiphon_gateway.orders.prepared import AnswerAttempt, PreparedRequest
from antiphon_gateway.sessions.call_segment import CallSegment
from antiphon_gateway.sessions.session import FIRST_ATTEMPT, Session


class ConversationSession:
    """Asks for one segment after the other. `close` it at the end.

    The stages keep the session parked between turns: it takes no slot then. A session that has
    failed, or whose stages are not those of the outputs now wanted, is left for a new one; so is
    one in which no function can be called, when some may be, and one on a replica that is to get
    nothing new. One that drains is left between two turns already, since it waits for that. The
    new session takes the same replicas where these have room. A turn may be heard while it is
    spoken: then its segment is open before it is asked for. Admission knows nothing of the slots
    that it keeps so, which is why it gives them up when an answer must wait for slots, and when
    for `listen_idle_s` nothing more has come of it and no answer was asked for.
    """

    def __init__(self, calls: Calls, *, listen_idle_s: float) -> None:
        self._calls = calls
        self._listen_idle_s = listen_idle_s
        self._left = AsyncExitStack()
        self._session: Session | None = None
        self._outputs: frozenset[str] = frozenset()
        self._calling = False
        self._replicas: Assignment | None = None
        self._turn: LiveTurn | None = None
        self._answering = False
        self._leaving: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._heard_at = 0.0

    def hears(self, number: int) -> int | None:
        """How many samples of a turn the stages were brought while it is spoken; None: it is not
        heard so, and `begin_turn` may be called when nothing else is under way.

        A turn before it that nobody has asked to be answered is given up.
        """
        if self._turn is not None and self._turn.number != number:
            self.forget_turn()
        if self._turn is not None:
            return self._turn.heard
        return None

    @property
    def is_free(self) -> bool:
        """Whether no turn that was given up is still being let go."""
        return self._leaving is None or self._leaving.done()

    def begin_turn(self, number: int, rate_hz: int, order: Order) -> None:
        """Let the stages hear a turn behind what the order has, while it is spoken."""
        span = self._calls.tracing.request("turn", given_traceparent.get())
        self._turn = LiveTurn(number, rate_hz, order, self._open_live, span)

    def asked(self) -> TraceSpan | None:
        """A response is about to answer the turn that is heard: its span, which the response ends.
        None: none is heard."""
        if self._turn is None:
            return None
        self._turn.is_asked = True
        return self._turn.span

    async def hear(self, pcm16: bytes) -> None:
        """More of the turn that is spoken."""
        if self._turn is not None:
            await self._turn.hear(pcm16)

    def keep_listening(self) -> None:
        """More of the turn was said, whether it is brought already or not."""
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        if self._turn is not None and self._idle is None:
            self._idle = loop.call_later(self._listen_idle_s, self._check_idle)

    def _check_idle(self) -> None:
        """Give the turn up if nothing more of it has come since; one timer does for all pieces."""
        self._idle, loop = None, asyncio.get_running_loop()
        until = self._heard_at + self._listen_idle_s
        if until > loop.time():
            self._idle = loop.call_at(until, self._check_idle)
        else:
            self.forget_turn()

    def forget_turn(self) -> None:
        """Give up what the stages have heard of a turn, if there is any: who answers it takes the
        plain way."""
        turn = self._take_turn()
        if turn is not None:
            self._leaving = asyncio.create_task(self._give_up(turn))

    @asynccontextmanager
    async def turn(
        self,
        order: Order,
        on_wait: Callable[[Reservation], None],
        on_open: Callable[[CallSegment], None] = lambda segment: None,
    ) -> AsyncIterator[FailoverSegment]:
        """The segment that answers, with all its slots; `on_wait` is called when these are not
        there at once. A turn that the stages hear is given up then: who is before it in the queue
        may wait for the very slots that it keeps. For `on_open` see `Calls.turn`.

        Raises what `Calls.prepare`, `Calls.turn`, `Calls.session` and `Session.ask` raise.

        The one before it is over, or is given up with its session.
        """

        def wait(place: Reservation) -> None:
            self.forget_turn()
            on_wait(place)

        self._stop_idle()
        self._answering = True
        try:
            prepared = await self._calls.prepare(
                order,
                sent=None if self._session is None else self._session.sent,
                heard=self._turn is not None and self._turn.is_answered_by(order),
            )
            async with self._calls.turn(prepared, self._ask, wait, on_open) as segment:
                yield segment
        finally:
            self._answering = False
            self._move_on()

    async def settle(self) -> None:
        """Leave the session if its segment is not over: nobody will read that any more."""
        if self._turn is not None or (self._session is not None and not self._session.parked):
            await self.close()

    async def close(self) -> None:
        """Leave the session; the stages are free then."""
        turn = self._take_turn()
        try:
            if turn is not None:
                await turn.give_up()
            if self._leaving is not None:
                await asyncio.wait([self._leaving])
        finally:
            await self._leave()

    def _take_turn(self) -> LiveTurn | None:
        """The turn that is heard, which is somebody else's from now on."""
        self._stop_idle()
        turn, self._turn = self._turn, None
        return turn

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    async def _give_up(self, turn: LiveTurn) -> None:
        await turn.give_up()
        if self._is_to_go:
            await self._leave()

    @property
    def _is_to_go(self) -> bool:
        """Whether the session is parked, with nobody about to use it, where it cannot stay."""
        session = self._session
        is_idle = not self._answering and self._turn is None
        return is_idle and session is not None and session.parked and session.assignment.leaving

    def _move_on(self) -> None:
        """Leave a replica that drains and would wait for the next turn; that opens a new session.

        Who is being let go does so itself.
        """
        if self.is_free and self._is_to_go:
            self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        self._session = None
        await self._left.aclose()

    async def _ask(self, prepared: PreparedRequest, attempt: AnswerAttempt) -> CallSegment:
        turn = self._take_turn()
        if self._leaving is not None:
            await asyncio.wait([self._leaving])
        if turn is not None:
            heard = await turn.answer(prepared.order, attempt.on_freed)
            if heard is not None and self._session is not None and not self._session.lost:
                return heard
        return await self._opened(prepared, attempt)

    async def _open_live(self, order: Order) -> CallSegment:
        sent = None if self._session is None else self._session.sent
        return await self._opened(await self._calls.prepare(order, sent=sent), live=True)

    async def _opened(
        self,
        prepared: PreparedRequest,
        attempt: AnswerAttempt = FIRST_ATTEMPT,
        *,
        live: bool = False,
    ) -> CallSegment:
        order = prepared.order
        if self._session is not None and self._session.lost:
            attempt = self._elsewhere(self._session, attempt)
        if self._session is not None and not (
            self._session.parked
            and not self._session.assignment.should_avoid(attempt.avoided)
            and self._outputs == order.outputs
            and (self._calling or not order.tools)
        ):
            await self._leave()
        if self._session is None:
            preferring = replace(attempt, preferred=self._replicas)
            self._session = await self._left.enter_async_context(
                self._calls.session(prepared, preferring)
            )
            self._replicas = self._session.assignment
            self._left.enter_context(self._replicas.telling(self._move_on))
            self._outputs, self._calling = order.outputs, bool(order.tools)
        session = self._session
        try:
            return await session.ask(prepared, attempt, last=False, live=live)
        except AntiphonError:
            # It may have been lost while recordings were read; a new one asks for its own faults.
            if not session.lost:
                raise
        return await self._opened(prepared, attempt, live=live)

    def _elsewhere(self, session: Session, attempt: AnswerAttempt) -> AnswerAttempt:
        """The attempt without the replica by which a session was lost, if there are others."""
        replicas = session.assignment.replicas
        lost = replicas.get(session.lost_stage)
        avoided = {*attempt.avoided, *([] if lost is None else [lost])}
        has_others = self._calls.fleet.has_others(replicas, avoided)
        return replace(attempt, avoided=avoided) if has_others else attempt
