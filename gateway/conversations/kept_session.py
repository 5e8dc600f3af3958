"""The session behind a conversation: kept from turn to turn, replaced when it is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from gateway.calls.calls import Calls
from gateway.calls.order import Order
from gateway.calls.place import Place
from gateway.calls.segment import CallSegment
from gateway.calls.session import Session


class ConversationSession:
    """Asks for one segment after the other. `close` it at the end.

    The stages keep the session parked between turns: it takes no slot then. A session that has
    failed, or whose stages are not those of the outputs now wanted, is left for a new one; so is
    one in which no function can be called, when some may be.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._left = AsyncExitStack()
        self._session: Session | None = None
        self._outputs: frozenset[str] = frozenset()
        self._calling = False

    @asynccontextmanager
    async def turn(
        self, order: Order, on_wait: Callable[[Place], None]
    ) -> AsyncIterator[CallSegment]:
        """The segment that answers, with all its slots; `on_wait` is called when these are not
        there at once. Raises what `Calls.turn`, `Calls.session` and `Session.ask` raise.

        The one before it is over, or is given up with its session.
        """
        answering = self._calls.turn(order, self._ask, on_wait)
        # Recordings may be large, and the answer may be long: the stages alone keep them.
        del order
        async with answering as segment:
            yield segment

    async def settle(self) -> None:
        """Leave the session if its segment is not over: nobody will read that any more."""
        if self._session is not None and not self._session.parked:
            await self.close()

    async def close(self) -> None:
        """Leave the session; the stages are free then."""
        self._session = None
        await self._left.aclose()

    async def _ask(self, order: Order, on_freed: Callable[[str], None]) -> CallSegment:
        if self._session is not None and not (
            self._session.parked
            and self._outputs == order.outputs
            and (self._calling or not order.tools)
        ):
            await self.close()
        if self._session is None:
            self._session = await self._left.enter_async_context(
                self._calls.session(order.outputs, order.model, calling=bool(order.tools))
            )
            self._outputs, self._calling = order.outputs, bool(order.tools)
        asking = self._session.ask(order, last=False, on_freed=on_freed)
        del order
        return await asking
