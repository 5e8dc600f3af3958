"""What the services leave behind when they have stopped."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Launcher

pytestmark = [pytest.mark.processes, pytest.mark.asyncio]


async def test_nothing_is_left_when_the_services_have_stopped(tiny: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    async with Launcher(local_deployment(tiny)) as running:
        assert len(running.processes) == 4
        pids = [process.pid for process in running.processes.values()]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert _abandoned(set(os.listdir("/dev/shm")) - before) == set()


def _abandoned(names: set[str]) -> set[str]:
    """Those of the names in /dev/shm whose file no living process has mapped: other programs of
    this machine make semaphores there at any time."""
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            lines = (line.split() for line in maps.read_text(errors="replace").splitlines())
            # A semaphore's file is mapped under a name that it had before.
            mapped |= {int(words[4]) for words in lines if words[5:6] and "/shm/" in words[5]}
    left = set()
    for each in names:
        with suppress(FileNotFoundError):
            if Path("/dev/shm", each).stat().st_ino not in mapped:
                left.add(each)
    return left
