"""Fake stages with slots, as real ones have them; and who waits for one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from antiphon.errors import ResourceExhausted
from tests.contract.fake_stages import ROLES, USUAL, FakeStages, Script, Session
from tests.contract.served_gateway import ServedGateway, serve_gateway

QUEUE: dict[str, Any] = {"max_waiting": 64, "queue_timeout_s": 600.0}


class SlottedStage:
    """A script that refuses a session beyond its slots, and runs another one in a slot.

    `most` is how many have run at a time, `refused` how many were refused. `others` hold slots
    that the gateway knows nothing of; one of them leaves at every third refusal, and `others_left`
    is set when the last one does.
    """

    def __init__(self, slots: int, script: Script) -> None:
        self.slots = slots
        self.others = 0
        self.others_left = asyncio.Event()
        self.script = script
        self.running = self.most = self.refused = 0

    async def __call__(self, session: Session) -> None:
        if self.running + self.others >= self.slots:
            self.refused += 1
            if self.others and self.refused % 3 == 0:
                self.others -= 1
                if not self.others:
                    self.others_left.set()
            await session.error(ResourceExhausted("all slots are taken", retry_after_s=1.0))
            return
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.script(session)
        finally:
            self.running -= 1


@asynccontextmanager
async def open_slotted(
    slots: int, *, told: bool = True, **settings: Any
) -> AsyncIterator[tuple[ServedGateway, dict[str, SlottedStage]]]:
    """An endpoint to stages that keep to their slots, which they tell or not, with a queue."""
    stages = {role: SlottedStage(slots, USUAL[role]) for role in ROLES}

    def prepare(fakes: FakeStages) -> None:
        for role, fake in fakes.by_role.items():
            fake.script = stages[role]
            fake.description.slots = slots if told else 0

    async with serve_gateway(prepare, **(QUEUE | settings)) as served:
        yield served, stages


class Gate:
    """A script that opens a session and goes on with the role's usual one, or with another, when it
    is let through."""

    def __init__(self, role: str, script: Script | None = None) -> None:
        self.begun: asyncio.Queue[Session] = asyncio.Queue()
        self._passes = asyncio.Semaphore(0)
        self._script = script or USUAL[role]

    async def __call__(self, session: Session) -> None:
        await session.opened()
        self.begun.put_nowait(session)
        await self._passes.acquire()
        await self._script(session)

    def let_through(self, number: int = 1) -> None:
        """Let so many go on."""
        for _ in range(number):
            self._passes.release()


class WaitingRequests(logging.Handler):
    """How many requests wait for a slot, as the gateway logs it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self._changed = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of the number."""
        assert isinstance(record.args, tuple)
        self.now = int(str(record.args[0]))
        self._changed.set()

    async def until(self, number: int) -> None:
        """Return when so many wait."""
        while self.now != number:
            self._changed.clear()
            await self._changed.wait()


@contextmanager
def waiting_requests() -> Iterator[WaitingRequests]:
    log, handler = logging.getLogger("gateway.admission"), WaitingRequests()
    before = log.level
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    try:
        yield handler
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
