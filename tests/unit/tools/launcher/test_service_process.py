"""Who waits for a service learns that its process has ended, and why."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from antiphon.errors import Unavailable
from antiphon_tools.launcher.process import ServiceProcess
from tests.unit.tools.launcher.fake_services import STAGE, Checkout, Pids

Wait = Callable[[ServiceProcess], Awaitable[object]]
LISTENING = 'say(event="listening", address="127.0.0.1:1"); '
WAITS = {
    "listening": ("", ServiceProcess.wait_listening),
    "ready": ("", ServiceProcess.wait_ready),
    "ready after listening": (LISTENING, ServiceProcess.wait_ready),
}


async def started(checkout: Checkout, program: str) -> ServiceProcess:
    checkout.write("talker", program)
    argv = ("antiphon_services", "talker", "--listen", "127.0.0.1:0")
    return await ServiceProcess.start(
        "talker#2", argv, root=checkout.root, report=lambda event: None
    )


@pytest.mark.parametrize(("first", "wait"), WAITS.values(), ids=WAITS)
@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("sys.exit(3)", "exited with status 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
    ],
)
async def test_waiting_ends_with_the_status_and_the_last_lines_when_the_process_ends(
    checkout: Checkout, first: str, wait: Wait, end: str, how: str
) -> None:
    process = await started(checkout, f"{first}print('no room', flush=True); {end}")
    with pytest.raises(Unavailable) as caught:
        await wait(process)
    assert caught.value.stage == "talker"
    expected = f"talker#2 {how} before it was ready; its output was:\n  no room"
    assert caught.value.message.endswith(expected)
    await process.report_exit()


async def test_waiting_returns_what_was_announced_though_the_process_has_ended_since(
    checkout: Checkout,
) -> None:
    process = await started(checkout, f'{LISTENING}say(event="ready")')
    await process.report_exit()
    async with asyncio.timeout(120):
        await asyncio.wait((process.ready,))
    assert (await process.wait_listening()).address == "127.0.0.1:1"
    assert await process.wait_ready() > 0


async def test_process_whose_end_cannot_be_observed_is_killed_and_its_start_fails(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[Pids] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            created.append(Pids([self.pid]))
            # From here on, asyncio gets neither a thread nor a handle, one of which it needs.
            monkeypatch.setattr(threading.Thread, "start", no_thread)
            monkeypatch.setattr(os, "pidfd_open", no_handle)

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def no_handle(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(subprocess, "Popen", Noted)
    with pytest.raises(OSError, match=r"can't start new thread|too many open files"):
        await started(checkout, STAGE)
    monkeypatch.undo()
    assert not await asyncio.to_thread(created[0].left)
