"""The session of a conversation. It is kept between turns, and replaced if it is lost."""

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
    """The session of a conversation, in which each turn is a segment. Call `close` when the
    conversation ends.

    Between turns, the stages park the session, so it doesn't occupy a slot. A new session replaces
    it if it has failed, if the requested outputs need different stages, if functions may be called
    but the session doesn't support them, or if one of its replicas no longer accepts sessions. If a
    replica is draining, the session is closed between two turns, because the replica would
    otherwise wait for it. The new session uses the same replicas if they have free slots.

    A turn can be sent to the stages while the user is still speaking. Its segment is then open
    before an answer has been requested, and its slots aren't counted by admission. For this reason,
    the segment is abandoned if an answer has to wait for slots, or if neither audio nor a request
    arrives for `listen_idle_s` seconds.
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
        """Return how many samples of turn `number` have been sent to the stages while the user is
        speaking.

        Returns None if the turn isn't being sent. In that case, `begin_turn` can be called,
        provided that no other segment is running. If an earlier turn was sent but no answer was
        requested for it, that turn is abandoned.
        """
        if self._turn is not None and self._turn.number != number:
            self.forget_turn()
        if self._turn is not None:
            return self._turn.heard
        return None

    @property
    def is_free(self) -> bool:
        """Whether the stages have released all turns that were abandoned."""
        return self._leaving is None or self._leaving.done()

    def begin_turn(self, number: int, rate_hz: int, order: Order) -> None:
        """Start sending a turn to the stages while the user is speaking. The turn follows the items
        in the order.
        """
        span = self._calls.tracing.request("turn", given_traceparent.get())
        self._turn = LiveTurn(number, rate_hz, order, self._open_live, span)

    def asked(self) -> TraceSpan | None:
        """Return the trace span of the current turn, or None if there is no turn. The span must be
        ended by the response to the turn.
        """
        if self._turn is None:
            return None
        self._turn.is_asked = True
        return self._turn.span

    async def hear(self, pcm16: bytes) -> None:
        """Send the next piece of the turn while the user is speaking."""
        if self._turn is not None:
            await self._turn.hear(pcm16)

    def keep_listening(self) -> None:
        """Send any audio of the turn that hasn't been sent yet."""
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        if self._turn is not None and self._idle is None:
            self._idle = loop.call_later(self._listen_idle_s, self._check_idle)

    def _check_idle(self) -> None:
        """If no more audio has arrived, abandon the turn. All pieces share a single timer."""
        self._idle, loop = None, asyncio.get_running_loop()
        until = self._heard_at + self._listen_idle_s
        if until > loop.time():
            self._idle = loop.call_at(until, self._check_idle)
        else:
            self.forget_turn()

    def forget_turn(self) -> None:
        """Abandon the turn that was sent to the stages, if any. Answering it then takes an ordinary
        request.
        """
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
        """Return the segment of an answer. It already has all of its slots.

        If the slots aren't available immediately, `on_wait` is called. If the turn was already sent
        to the stages, it is abandoned, because an earlier request in the queue may be waiting for
        its slots. See `Calls.turn` for `on_open`. If the previous segment hasn't ended, it is
        abandoned together with its session.

        Raises the errors of `Calls.prepare`, `Calls.turn`, `Calls.session` and `Session.ask`.
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
                is_turn=True,
            )
            async with self._calls.turn(prepared, self._ask, wait, on_open) as segment:
                yield segment
        finally:
            self._answering = False
            self._move_on()

    async def settle(self) -> None:
        """If the session's segment hasn't ended, close the session, because no one reads the
        segment any more.
        """
        if self._turn is not None or (self._session is not None and not self._session.parked):
            await self.close()

    async def close(self) -> None:
        """Leave the session and release the stages."""
        turn = self._take_turn()
        try:
            if turn is not None:
                await turn.give_up()
            if self._leaving is not None:
                await asyncio.wait([self._leaving])
        finally:
            await self._leave()

    def _take_turn(self) -> LiveTurn | None:
        """Return the current turn. The caller becomes its owner."""
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
        """Whether the session is parked on a replica that it needs to leave."""
        session = self._session
        is_idle = not self._answering and self._turn is None
        return is_idle and session is not None and session.parked and session.assignment.leaving

    def _move_on(self) -> None:
        """Leave a replica that is draining, because it would otherwise have to wait for the next
        turn. The next turn will open a new session.

        This has no effect if the session is already being closed.
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
        prepared = await self._calls.prepare(order, sent=sent, is_turn=True)
        try:
            return await self._opened(prepared, live=True)
        finally:
            # The stages already have the items before this turn. The rest is sent as it arrives.
            prepared.media.release()

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
            # The session may have been lost while the recordings were being read. In that case, a
            # new session is opened, which raises its own errors.
            if not session.lost:
                raise
        return await self._opened(prepared, attempt, live=live)

    def _elsewhere(self, session: Session, attempt: AnswerAttempt) -> AnswerAttempt:
        """Return an attempt that avoids the replica that caused the session to be lost, if there
        are other replicas.
        """
        replicas = session.assignment.replicas
        lost = replicas.get(session.lost_stage)
        avoided = {*attempt.avoided, *([] if lost is None else [lost])}
        has_others = self._calls.fleet.has_others(replicas, avoided)
        return replace(attempt, avoided=avoided) if has_others else attempt
