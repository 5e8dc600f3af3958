"""The session behind a conversation: kept from turn to turn, replaced when it is lost."""

from __future__ import annotations

from contextlib import AsyncExitStack

from gateway.calls.calls import Calls
from gateway.calls.order import Order
from gateway.calls.segment import CallSegment
from gateway.calls.session import Session


class ConversationSession:
    """Asks for one segment after the other. `close` it at the end.

    The stages keep the session parked between turns: it takes no slot then. A session that has
    failed, or whose stages are not those of the outputs now wanted, is left for a new one.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._left = AsyncExitStack()
        self._session: Session | None = None
        self._outputs: frozenset[str] = frozenset()

    async def ask(self, order: Order) -> CallSegment:
        """The segment that answers. Raises what `Calls.session` and `Session.ask` raise.

        The one before it is over, or is given up with its session.
        """
        if self._session is not None and not (
            self._session.parked and self._outputs == order.outputs
        ):
            await self.close()
        if self._session is None:
            self._session = await self._left.enter_async_context(
                self._calls.session(order.outputs, order.model)
            )
            self._outputs = order.outputs
        asking = self._session.ask(order, last=False)
        # Recordings may be large, and the answer may be long: the stages alone keep them.
        del order
        return await asking

    async def settle(self) -> None:
        """Leave the session if its segment is not over: nobody will read that any more."""
        if self._session is not None and not self._session.parked:
            await self.close()

    async def close(self) -> None:
        """Leave the session; the stages are free then."""
        self._session = None
        await self._left.aclose()
