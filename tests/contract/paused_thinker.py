"""A thinker that waits in the middle of its answer."""

from __future__ import annotations

import asyncio

from antiphon.values.segment import FinishReason
from tests.contract.fake_stages import Session


class Pause:
    """A script of a thinker: half a word, and the rest when it is told to go on."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, session: Session) -> None:
        await session.opened()
        await session.text("Hel")
        self.begun.set()
        await self.go_on.wait()
        await session.text("lo", finish=FinishReason.STOP)
        await session.report()
