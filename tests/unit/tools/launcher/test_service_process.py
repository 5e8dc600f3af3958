"""Who waits for a service learns that its process has ended, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from antiphon.errors import Unavailable
from antiphon_tools.launcher.process import ServiceProcess
from tests.unit.tools.launcher.fake_services import Checkout

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
