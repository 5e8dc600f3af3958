"""A stage that is forked for a test is a process like one that was started."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from antiphon_tools.launcher.events import (
    Exited,
    LaunchEvent,
    Listening,
    Loaded,
    Output,
    ProcessStarted,
)
from antiphon_tools.launcher.plan import application_root
from antiphon_tools.warm.launcher import WarmProcess

pytestmark = pytest.mark.processes


async def start(model: Path, told: list[LaunchEvent]) -> WarmProcess:
    argv = ("antiphon_services", "code2wav", "--model", str(model), "--listen", "127.0.0.1:0")
    process = await WarmProcess.start("c", argv, root=application_root(), report=told.append)
    assert isinstance(process, WarmProcess)
    return process


async def test_forked_stage_tells_of_itself_and_can_be_ended(tiny: Path) -> None:
    told: list[LaunchEvent] = []
    process = await start(tiny, told)
    await process.wait_ready()
    assert os.getpgid(process.pid) == process.pid
    assert os.readlink(f"/proc/{process.pid}/cwd") == str(application_root())
    process.terminate()
    await process.report_exit()
    assert process.exited.result() == 0
    kinds = [type(each) for each in told]
    assert kinds[0] is ProcessStarted
    assert kinds[-1] is Exited
    assert {Listening, Loaded, Output} <= set(kinds)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


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
