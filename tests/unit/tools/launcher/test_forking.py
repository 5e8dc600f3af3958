"""Services that a fork server starts are processes of the launcher."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import Unavailable
from antiphon_testkit.local_deployment import local_deployment
from antiphon_testkit.open_files import open_files, opened_since
from antiphon_tools.launcher import preflight
from antiphon_tools.launcher.events import (
    Exited,
    LaunchEvent,
    Output,
    ProcessStarted,
    Restarting,
)
from antiphon_tools.launcher.forking import ForkServer
from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.launcher.plan import service_environment, working_directory
from antiphon_tools.launcher.process import ServiceProcess
from tests.unit.tools.launcher.fake_services import ROLES, STAGE, Checkout

# Its parent is the launcher and not the process that forked it.
NAMED = "\nprint(os.getppid(), open('/proc/self/cmdline').read().split(chr(0))[4:6])\n"
# A module with a thread, which a fork would lose.
THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
FAILING = "raise RuntimeError('cannot be imported')"
MOVING = "import os; os.chdir('/'); os.environ['ONLY_IN_THE_SERVER'] = '1'"
SHOWING = "\nprint(json.dumps([dict(os.environ), os.getcwd(), 'imported_before' in sys.modules]))\n"


async def start(
    checkout: Checkout, server: ForkServer, *argv: str
) -> tuple[ServiceProcess, list[LaunchEvent]]:
    told: list[LaunchEvent] = []
    process = await ServiceProcess.start(
        "talker",
        argv or ("antiphon_services", "talker", "--listen", "127.0.0.1:0"),
        root=checkout.root,
        report=told.append,
        fork_server=server,
    )
    return process, told


def importing(checkout: Checkout, program: str = "") -> ForkServer:
    """A server that imports a module, from which services see that they were forked."""
    module = checkout.root / "services" / "imported_before.py"
    module.write_text(program)
    checkout.write("talker", "print('imported_before' in sys.modules)" + NAMED + STAGE)
    return ForkServer(checkout.root, ["imported_before", "antiphon_services.none.load"])


def children_of(pid: int) -> list[int]:
    """The children of the main thread of a process, including those that have ended."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def fork_server_of_this_process() -> int:
    servers = [
        pid
        for pid in children_of(os.getpid())
        if b"antiphon_tools.launcher.fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    # A server of all tests may run as well, which was started before.
    return servers[-1]


async def ended(process: ServiceProcess) -> Sequence[str]:
    """What it printed."""
    process.kill()
    await process.report_exit()
    return list(process.tail)


async def test_service_is_forked_and_looks_like_a_started_one(checkout: Checkout) -> None:
    with importing(checkout) as server:
        process, told = await start(checkout, server)
        await process.wait_ready()
        assert os.getpgid(process.pid) == process.pid
        assert told[0] == ProcessStarted("talker", process.pid)
        printed = await ended(process)
    assert printed[0] == "True"
    assert printed[1] == f"{os.getpid()} ['antiphon_services', 'talker']"
    assert told[-1] == Exited("talker", -signal.SIGKILL)


async def test_forked_service_has_the_environment_and_directory_of_a_started_one(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONLY_BEFORE", "1")
    with importing(checkout, MOVING) as server:
        checkout.write("talker", SHOWING + STAGE)
        first, _ = await start(checkout, server)
        await first.wait_ready()
        await ended(first)
        monkeypatch.delenv("ONLY_BEFORE")
        monkeypatch.setenv("ONLY_AFTER", "2")
        second, _ = await start(checkout, server)
        await second.wait_ready()
        environment, directory, forked = json.loads((await ended(second))[0])
    assert forked
    assert environment == service_environment(checkout.root)
    assert directory == str(working_directory(checkout.root))


async def test_forked_process_does_not_run_the_service_when_the_launcher_does_not_permit_it(
    checkout: Checkout,
) -> None:
    class Failed(Exception):
        pass

    def fail() -> ServiceProcess:
        raise Failed

    with importing(checkout) as server:
        checkout.write("talker", "say(event='ready')")
        announced, announce_fd = os.pipe()
        with os.fdopen(announced, "rb", buffering=0) as source:
            with os.fdopen(announce_fd), pytest.raises(Failed):
                await server.start(fail, ("antiphon_services", "talker"), announce_fd)
            # The pipe ends with the process, which has announced nothing until then.
            assert await asyncio.to_thread(source.read, 1) == b""


@pytest.mark.parametrize(("module", "name"), [(socket, "socketpair"), (os, "pipe")])
async def test_start_that_fails_leaves_no_descriptor_open(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    def refuse(*_args: object) -> None:
        raise OSError(errno.EMFILE, "too many")

    with importing(checkout) as server:
        process, _ = await start(checkout, server)
        await process.wait_ready()
        before = open_files()
        with monkeypatch.context() as exhausted:
            exhausted.setattr(module, name, refuse)
            with pytest.raises(OSError, match="too many"):
                await server.start(lambda: process, ("antiphon_services", "talker"), 0)
        assert not opened_since(before)
        await ended(process)


async def test_forked_process_is_not_left_as_a_zombie_when_its_end_cannot_be_observed(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = os.pidfd_open

    def only_own(pid: int) -> int:
        if pid == os.getpid():
            return opens(pid)
        raise OSError(errno.EMFILE, "too many")

    with importing(checkout) as server:
        process, _ = await start(checkout, server)
        await process.wait_listening()
        before = open_files()
        monkeypatch.setattr(os, "pidfd_open", only_own)
        others = set(children_of(os.getpid()))
        with pytest.raises(OSError, match="too many"):
            await start(checkout, server)
        assert set(children_of(os.getpid())) <= others
        monkeypatch.undo()
        process.kill()
        await process.report_exit()
    assert not opened_since(before)


async def test_deployment_is_refused_with_a_reason_when_a_service_cannot_be_started(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(*_arguments: object, **_settings: object) -> None:
        raise OSError(errno.EAGAIN, "no process is free")

    monkeypatch.setattr(ServiceProcess, "start", start)
    with pytest.raises(Unavailable, match=r"^thinker could not be started: no process is free$"):
        async with Launcher(local_deployment(checkout.model), root=checkout.root):
            pass


async def test_server_keeps_no_ended_process_when_it_receives_the_next_order(
    checkout: Checkout,
) -> None:
    with importing(checkout) as server:
        for _ in range(3):
            process, _ = await start(checkout, server)
            await process.wait_ready()
            await ended(process)
        left = children_of(fork_server_of_this_process())
    # The server may still wait for the process that forked the last service.
    assert len(left) <= 1


@pytest.mark.parametrize("program", [THREAD, FAILING])
async def test_service_is_started_when_the_server_cannot_fork_it(
    checkout: Checkout, program: str
) -> None:
    with importing(checkout, program) as server:
        for _ in range(2):
            process, _ = await start(checkout, server)
            await process.wait_ready()
            assert (await ended(process))[0] == "False"


async def test_service_is_started_when_a_variable_has_changed_that_imports_read(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    with importing(checkout) as server:
        for name, forked in (("", True), ("NOT_READ", True), ("OMP_NUM_THREADS", False)):
            if name:
                monkeypatch.setenv(name, "7")
            process, _ = await start(checkout, server)
            await process.wait_ready()
            assert (await ended(process))[0] == str(forked), name


async def test_service_is_started_when_a_variable_is_not_utf_8(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environb, b"NOT_UTF_8", b"\xff")
    with importing(checkout) as server:
        process, _ = await start(checkout, server)
        await process.wait_ready()
        assert (await ended(process))[0] == "False"


async def test_service_is_started_when_the_system_gives_no_handles_of_processes(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with importing(checkout) as server:
        process, _ = await start(checkout, server)
        await process.wait_ready()
        assert (await ended(process))[0] == "False"


async def test_end_of_the_server_does_not_end_services_and_the_next_one_is_started(
    checkout: Checkout,
) -> None:
    with importing(checkout) as server:
        first, _ = await start(checkout, server)
        await first.wait_ready()
    assert not first.exited.done()
    second, _ = await start(checkout, server)
    await second.wait_ready()
    os.kill(first.pid, 0)
    assert (await ended(second))[0] == "False"
    assert (await ended(first))[0] == "True"


async def test_forked_service_that_is_killed_is_forked_again(checkout: Checkout) -> None:
    told: list[LaunchEvent] = []
    restarted = asyncio.Event()

    def report(event: LaunchEvent) -> None:
        told.append(event)
        if isinstance(event, ProcessStarted) and Restarting("talker", 0.5) in told:
            restarted.set()

    async with Launcher(
        local_deployment(checkout.model),
        root=checkout.root,
        report=report,
        on_exit="restart",
        fork=True,
    ) as running:
        os.kill(running.processes["talker"].pid, signal.SIGKILL)
        await restarted.wait()
        await running.processes["talker"].wait_ready()
    assert Exited("talker", -signal.SIGKILL) in told


async def test_service_is_started_again_when_the_server_and_it_are_killed(
    checkout: Checkout,
) -> None:
    with importing(checkout) as server:
        forked, _ = await start(checkout, server)
        await forked.wait_ready()
        os.kill(fork_server_of_this_process(), signal.SIGKILL)
        started, _ = await start(checkout, server)
        await started.wait_ready()
        assert not forked.exited.done()
        assert (await ended(forked))[0] == "True"
        assert (await ended(started))[0] == "False"


async def test_stage_with_vllm_is_started_and_the_others_are_forked(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "is_importable", lambda package: True)
    for role in ROLES:
        checkout.write(role, "print('forked:', 'antiphon_tools' in sys.modules)" + STAGE)
    told: list[LaunchEvent] = []
    deployment = local_deployment(checkout.model, thinker=StageConfig(engine="vllm"))
    async with Launcher(deployment, root=checkout.root, report=told.append, fork=True):
        pass
    said = [each for each in told if isinstance(each, Output) and each.line.startswith("forked")]
    assert {each.service: each.line for each in said} == {
        "thinker": "forked: False",
        "talker": "forked: True",
        "code2wav": "forked: True",
    }


async def test_forked_service_that_does_not_start_explains_why(checkout: Checkout) -> None:
    checkout.write("talker", "print('talker: no weights'); sys.exit(3)")
    with pytest.raises(Unavailable, match=r"exited with status 3.*no weights"):
        async with Launcher(local_deployment(checkout.model), root=checkout.root, fork=True):
            pass
