"""A forked stage is a process like one that was started."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.events import (
    Exited,
    LaunchEvent,
    Listening,
    Loaded,
    Output,
    ProcessStarted,
)
from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.launcher.plan import application_root
from antiphon_tools.launcher.process import ServiceProcess
from antiphon_tools.warm.launcher import shared_fork_server

pytestmark = pytest.mark.processes


async def start(model: Path, told: list[LaunchEvent], *, forked: bool = True) -> ServiceProcess:
    argv = ("antiphon_services", "code2wav", "--model", str(model), "--listen", "127.0.0.1:0")
    return await ServiceProcess.start(
        "c",
        argv,
        root=application_root(),
        report=told.append,
        fork_server=shared_fork_server() if forked else None,
    )


def facts_of(pid: int) -> dict[str, object]:
    """What the system knows of a process, except for what differs between two of the same kind."""
    here = Path(f"/proc/{pid}")
    command = (here / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    status = dict(
        line.split(":\t", 1) for line in (here / "status").read_text().splitlines() if ":\t" in line
    )
    signals = ("SigIgn", "SigCgt", "SigBlk")
    return {
        "command": command[: command.index(b"--announce-fd")],
        "parent": status["PPid"],
        "group": os.getpgid(pid) == pid,
        "session": os.getsid(pid),
        "directory": os.readlink(here / "cwd"),
        "streams": [os.readlink(here / "fd" / each).partition(":")[0] for each in "012"],
    } | {name: status[name] for name in signals}


def mapped_by(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


async def test_forked_stage_tells_of_itself_and_can_be_ended(tiny: Path) -> None:
    told: list[LaunchEvent] = []
    process = await start(tiny, told)
    await process.wait_ready()
    process.terminate()
    await process.report_exit()
    assert process.exited.result() == 0
    kinds = [type(each) for each in told]
    assert kinds[0] is ProcessStarted
    assert kinds[-1] is Exited
    assert {Listening, Loaded, Output} <= set(kinds)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


async def test_forked_stage_does_not_differ_from_a_started_one(tiny: Path) -> None:
    processes = [await start(tiny, [], forked=forked) for forked in (True, False)]
    for process in processes:
        await process.wait_ready()
    forked, started = (facts_of(each.pid) for each in processes)
    assert forked == started
    assert forked["parent"] == str(os.getpid())
    for process in processes:
        process.kill()
        await process.report_exit()


async def test_forked_stage_tells_why_it_does_not_start_and_by_what_it_died(
    tiny: Path, tmp_path: Path
) -> None:
    process = await start(tmp_path, [])
    await process.report_exit()
    assert process.exited.result() == 2
    assert process.tail
    process = await start(tiny, [])
    process.kill()
    await process.report_exit()
    assert process.exited.result() == -signal.SIGKILL


async def test_stages_and_gateway_of_a_deployment_share_the_imports(tiny: Path) -> None:
    async with Launcher(local_deployment(tiny), fork=True) as running:
        for name, process in running.processes.items():
            # The gateway never imports torch, so only a forked one has it.
            assert "libtorch_cpu" in mapped_by(process.pid), name
