"""Plays the client's part of a script, with either of the clients.

The same coroutines serve both. With the blocking client they never suspend, and each runs in a
thread of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from antiphon.client.calls import now
from antiphon.errors import AntiphonError
from tests.unit.client.call_scripts import FLOOD, FLOOD_BYTES, AwaitSteps, Outcome, Script, Step
from tests.unit.client.scripted_server import BOUND_S, ScriptedServer

READS_AFTER_THE_END = 2


async def settle(value: Any) -> Any:
    """What a method of either client returns."""
    return await value if inspect.isawaitable(value) else value


class Session(Protocol):
    """The call of a script, with either client."""

    async def open(self) -> None: ...

    async def read(self) -> int | None: ...

    async def write(self, padding: int) -> None: ...

    def finish(self) -> None: ...

    def cancel(self) -> None: ...

    async def close_client(self) -> None: ...

    async def round_trip(self) -> None:
        """Make another call on the same connection, which has brought what was sent before."""
        ...


class Running(Protocol):
    """A task or a thread."""

    def cancel(self) -> Any: ...


class Twin(Protocol):
    """How the coroutines of one client run."""

    def start(self, work: Coroutine[Any, Any, None]) -> Running: ...

    async def wait(self, waits: Callable[[], Any]) -> None: ...

    async def join(self, running: Running) -> None: ...


class TaskTwin:
    """For the asyncio client."""

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)

    async def wait(self, waits: Callable[[], Any]) -> None:
        await asyncio.to_thread(waits)

    async def join(self, running: asyncio.Task[None]) -> None:
        async with asyncio.timeout(BOUND_S):
            await asyncio.wait([running])
        if not running.cancelled():
            running.result()


class _Thread(threading.Thread):
    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            now(self._work)
        except BaseException as error:
            self.error = error

    def cancel(self) -> None:
        raise NotImplementedError("no script for threads cancels them")


class ThreadTwin:
    """For the blocking client."""

    def start(self, work: Coroutine[Any, Any, None]) -> _Thread:
        thread = _Thread(work)
        thread.start()
        return thread

    async def wait(self, waits: Callable[[], Any]) -> None:
        waits()

    async def join(self, running: _Thread) -> None:
        running.join(BOUND_S)
        assert not running.is_alive(), "it hangs"
        if running.error is not None:
            raise running.error


class Player:
    """Plays one script."""

    def __init__(self, script: Script, server: ScriptedServer, session: Session, twin: Any) -> None:
        self.outcome = Outcome()
        self._script = script
        self._server = server
        self._session = session
        self._twin: Twin = twin
        self._written = threading.Event()
        self._reader: Running | None = None
        self._flood: Running | None = None

    async def play(self) -> Outcome:
        """Play until both have ended, and leave the client open, unless the script closes it."""
        try:
            await self._session.open()
        except AntiphonError as error:
            self.outcome.ends.append(error)
        self._reader = self._twin.start(self._read())
        writer = self._twin.start(self._write())
        await self._twin.join(writer)
        await self._twin.join(self._reader)
        if self._flood is not None:
            await self._twin.join(self._flood)
        if Step.STOP_READER in self._script.writing:
            self._session.cancel()
            await self._read_on()
        if self._server.begun.is_set():
            await self._twin.wait(lambda: self._server.over.wait(BOUND_S))
            assert self._server.over.is_set(), "the server's side of the call goes on"
        return self.outcome

    async def _read(self) -> None:
        for step in self._script.reading:
            match step:
                case Step.READ:
                    await self._read_one()
                case Step.AWAIT_END:
                    await self._await_end()
                case Step.AWAIT_WRITER:
                    await self._twin.wait(lambda: self._written.wait(BOUND_S))
        await self._read_on()

    async def _read_on(self) -> None:
        while len(self.outcome.ends) < READS_AFTER_THE_END:
            await self._read_one()

    async def _read_one(self) -> None:
        try:
            message = await self._session.read()
        except AntiphonError as error:
            self.outcome.ends.append(error)
            return
        if message is None:
            self.outcome.ends.append(None)
        else:
            assert not self.outcome.ends, "a message after the end"
            self.outcome.messages.append(message)

    async def _write(self) -> None:
        try:
            for step in self._script.writing:
                await self._write_step(step)
        finally:
            self._written.set()

    async def _write_step(self, step: Step | AwaitSteps) -> None:
        match step:
            case AwaitSteps(steps):
                await self._twin.wait(lambda: self._server.wait_steps(steps))
            case Step.WRITE:
                await self._write_one(0, self.outcome.written)
            case Step.FLOOD:
                self._flood = self._twin.start(self._write_flood())
            case Step.STOP_FLOOD:
                assert self._flood is not None
                self._flood.cancel()
            case Step.FINISH:
                self._session.finish()
            case Step.AWAIT_END:
                await self._await_end()
            case Step.CANCEL:
                self._session.cancel()
                self._server.ended.set()
            case Step.CLOSE:
                await self._session.close_client()
                self._server.ended.set()
            case Step.STOP_READER:
                assert self._reader is not None
                self._reader.cancel()
                self._server.ended.set()

    async def _write_flood(self) -> None:
        for _ in range(FLOOD):
            await self._write_one(FLOOD_BYTES, self.outcome.flooded)

    async def _write_one(self, padding: int, written: list[AntiphonError | None]) -> None:
        try:
            await self._session.write(padding)
        except AntiphonError as error:
            written.append(error)
        else:
            written.append(None)

    async def _await_end(self) -> None:
        await self._twin.wait(lambda: self._server.ended.wait(BOUND_S))
        assert self._server.ended.is_set()
        with suppress(AntiphonError):  # The connection is cut, or the client is closed.
            await self._session.round_trip()
