"""The command as the first process of a container, which is the parent of all orphans."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux lets a process adopt orphans"
)

LONG_S = 240.0
# A process that adopts orphans as PID 1 does, and takes itself for it.
PROGRAM = """
import ctypes, os, signal, sys, threading
from antiphon_tools.launcher import first_process
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
prctl = ctypes.CDLL(None).prctl
assert prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
wait = os.waitpid
def noted(*which):
    pid, status = wait(*which)
    if pid:
        print("reaped", pid, flush=True)
    return pid, status
os.waitpid = noted
# As the threads of libraries: it doesn't exist in the child, and any signal may be given to it.
threading.Thread(target=threading.Event().wait, daemon=True).start()
first_process.FIRST = os.getpid()
first_process.fork_if_first({signal.SIGTERM})
prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
assert os.getppid() == first_process.FIRST
os.waitpid = wait
assert not signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
assert signal.set_wakeup_fd(-1) == -1
if (between := os.fork()) == 0:
    if (orphan := os.fork()) == 0:
        os.read(0, 1)
    else:
        print("orphan", orphan, flush=True)
    os._exit(0)
os.waitpid(between, 0)
print("launcher", os.getpid(), flush=True)
signal.sigwait({signal.SIGTERM})
sys.exit(7)
"""


@asynccontextmanager
async def first_process() -> AsyncIterator[tuple[asyncio.subprocess.Process, int, int]]:
    """The process, its orphan, and its child that runs the command."""
    async with asyncio.timeout(LONG_S):
        first = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            yield first, await said(first, "orphan"), await said(first, "launcher")
        finally:
            if first.returncode is None:
                first.kill()
            await ended(first)


async def ended(first: asyncio.subprocess.Process) -> int:
    """The exit status. The orphan, which has the same output, ends with the input."""
    assert first.stdin is not None
    first.stdin.close()
    return await first.wait()


async def said(first: asyncio.subprocess.Process, what: str) -> int:
    assert first.stdout is not None
    word, pid = (await first.stdout.readline()).split()
    assert word.decode() == what
    return int(pid)


async def test_orphans_are_reaped_and_signals_and_the_exit_status_passed_on() -> None:
    async with first_process() as (first, orphan, launcher):
        assert first.stdin is not None
        first.stdin.write(b"\n")
        assert await said(first, "reaped") == orphan
        first.send_signal(signal.SIGTERM)
        assert await said(first, "reaped") == launcher
        assert await ended(first) == 7


async def test_exit_status_is_that_of_a_shell_when_the_command_is_killed() -> None:
    async with first_process() as (first, _, launcher):
        os.kill(launcher, signal.SIGKILL)
        assert await said(first, "reaped") == launcher
        assert await ended(first) == 128 + signal.SIGKILL
