from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from antiphon_testkit.cut_wire import CutWire
from antiphon_tools.chaos import faults
from antiphon_tools.chaos.faults import Victim


@pytest.fixture
async def victim() -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that waits until its input ends."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print(flush=True); input()", stdin=pipe, stdout=pipe
    )
    # Without descriptors it could not start.
    assert process.stdout is not None
    await process.stdout.readline()
    yield process
    if process.returncode is None:
        process.kill()
    await process.wait()


async def becomes(pid: int, state: int) -> None:
    """Return when the kernel says that the process has stopped, or goes on."""
    await asyncio.to_thread(os.waitid, os.P_PID, pid, state)


async def stay() -> None:
    """Keep the address."""


def to(process: asyncio.subprocess.Process, wire: CutWire | None = None) -> Victim:
    return Victim(process.pid, wire or CutWire("127.0.0.1:1"), random.Random(1), stay)


async def test_who_is_killed_ends(victim: asyncio.subprocess.Process) -> None:
    await faults.KILLED.strike(to(victim))
    assert await victim.wait() == -signal.SIGKILL


@pytest.mark.parametrize("fault", [faults.FROZEN, faults.SLOW, faults.RINGS])
async def test_who_is_frozen_stands_still_and_goes_on_then(
    victim: asyncio.subprocess.Process, fault: faults.Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is still stopped when the kernel is asked.
    monkeypatch.setattr(faults, "RING_STOPPED_S", 240.0)
    striking = asyncio.create_task(fault.strike(to(victim)))
    async with asyncio.timeout(120):
        await becomes(victim.pid, os.WSTOPPED)
        striking.cancel()
        await becomes(victim.pid, os.WCONTINUED)
    await asyncio.gather(striking, return_exceptions=True)


async def test_rings_are_damaged_while_their_process_stands_still(
    victim: asyncio.subprocess.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged: list[int] = []

    def damage(pid: int, _: random.Random) -> int:
        # It returns once the process has stopped, and never if it was not told to.
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        damaged.append(pid)
        return 1

    monkeypatch.setattr(faults, "damage_rings", damage)
    monkeypatch.setattr(faults, "RING_STOPPED_S", 0.0)
    monkeypatch.setattr(faults, "RING_RUNNING_S", 0.0)
    await faults.RINGS.strike(to(victim))
    assert damaged == [victim.pid] * faults.RING_ROUNDS


@pytest.mark.parametrize(
    ("fault", "limit", "most"),
    [
        (faults.DESCRIPTORS, resource.RLIMIT_NOFILE, 3),
        (faults.MEMORY, resource.RLIMIT_FSIZE, 0),
    ],
)
async def test_what_is_taken_is_given_back(
    victim: asyncio.subprocess.Process, fault: faults.Fault, limit: int, most: int
) -> None:
    before = resource.prlimit(victim.pid, limit)
    striking = asyncio.create_task(fault.strike(to(victim)))
    await asyncio.sleep(0)
    assert resource.prlimit(victim.pid, limit)[0] == most
    striking.cancel()
    await asyncio.gather(striking, return_exceptions=True)
    assert resource.prlimit(victim.pid, limit) == before


class Echo:
    """A server that sends back what comes, a client of it, and the wire between them."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Echo:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self._stack.callback(server.close)
        port = server.sockets[0].getsockname()[1]
        self.wire = CutWire(f"127.0.0.1:{port}")
        await self.wire.open()
        self._stack.push_async_callback(self.wire.close)
        host, _, port = self.wire.address.rpartition(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        self._stack.callback(self.writer.close)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def say(self, words: bytes) -> bytes:
        """What comes back."""
        self.writer.write(words)
        return await self.reader.readexactly(len(words))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(100):
            writer.write(piece)
        writer.close()


async def test_nothing_comes_through_to_who_is_parted_until_it_is_over(
    victim: asyncio.subprocess.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "PARTED_S", 1e6)
    async with Echo() as echo, asyncio.timeout(120):
        assert await echo.say(b"before") == b"before"
        striking = asyncio.create_task(faults.PARTED.strike(to(victim, echo.wire)))
        await asyncio.sleep(0)
        saying = asyncio.create_task(echo.say(b"meanwhile"))
        assert not (await asyncio.wait([saying], timeout=0.1))[0]
        striking.cancel()
        assert await saying == b"meanwhile"


async def test_connections_break_when_the_wire_is_cut(victim: asyncio.subprocess.Process) -> None:
    async with Echo() as echo, asyncio.timeout(120):
        assert await echo.say(b"before") == b"before"
        striking = asyncio.create_task(faults.CUT.strike(to(victim, echo.wire)))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await echo.reader.readexactly(1)
        striking.cancel()


async def test_a_byte_is_changed_now_and_then(
    victim: asyncio.subprocess.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "DAMAGED_S", 1e6)
    async with Echo() as echo, asyncio.timeout(120):
        striking = asyncio.create_task(faults.DAMAGED.strike(to(victim, echo.wire)))
        while (came := await echo.say(b"words")) == b"words":
            pass
        assert sum(one != other for one, other in zip(came, b"words", strict=True)) == 1
        striking.cancel()
