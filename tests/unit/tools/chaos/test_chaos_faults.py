from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from tools.chaos import faults


@pytest.fixture
async def victim() -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that waits until its input ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE
    )
    yield process
    if process.returncode is None:
        process.kill()
    await process.wait()


async def becomes(pid: int, state: int) -> None:
    """Return when the kernel says that the process has stopped, or goes on."""
    await asyncio.to_thread(os.waitid, os.P_PID, pid, state)


async def test_who_is_killed_ends(victim: asyncio.subprocess.Process) -> None:
    await faults.KILLED.strike(victim.pid)
    assert await victim.wait() == -signal.SIGKILL


@pytest.mark.parametrize("fault", [faults.FROZEN, faults.SLOW])
async def test_who_is_frozen_stands_still_and_goes_on_then(
    victim: asyncio.subprocess.Process, fault: faults.Fault
) -> None:
    striking = asyncio.create_task(fault.strike(victim.pid))
    async with asyncio.timeout(60):
        await becomes(victim.pid, os.WSTOPPED)
        striking.cancel()
        await becomes(victim.pid, os.WCONTINUED)
    await asyncio.gather(striking, return_exceptions=True)


async def test_descriptors_are_taken_and_given_back(victim: asyncio.subprocess.Process) -> None:
    before = resource.prlimit(victim.pid, resource.RLIMIT_NOFILE)
    striking = asyncio.create_task(faults.DESCRIPTORS.strike(victim.pid))
    await asyncio.sleep(0)
    assert resource.prlimit(victim.pid, resource.RLIMIT_NOFILE)[0] == 3
    striking.cancel()
    await asyncio.gather(striking, return_exceptions=True)
    assert resource.prlimit(victim.pid, resource.RLIMIT_NOFILE) == before
