"""The command line, as a process that gets signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from antiphon_tools.launcher.__main__ import SAME_REQUEST_S
from antiphon_tools.launcher.plan import CHECKOUT, EMBEDDED_MODEL, import_path
from tests.unit.tools.launcher.fake_services import EXIT_WAIT_S, ROLES, STUBBORN, Checkout, Pids
from tests.without_linux import FOLDER as WITHOUT_LINUX

PATIENT = """
import asyncio, sys
from pathlib import Path
from antiphon_tools.launcher.__main__ import up
from antiphon_tools.launcher.console import Console
from antiphon_tools.launcher.launcher import Launcher
from antiphon_testkit.local_deployment import local_deployment
console = Console(sys.stdout)
launcher = Launcher(local_deployment(Path("model")), report=console, stop_timeout_s=10_000)
sys.exit(asyncio.run(up(launcher, console)))
"""
UP = ("-m", "antiphon_tools.launcher", "up", "--port", "0", "--grpc-port", "0")
COMMAND = (*UP, "--model", "model")


@contextmanager
def running(
    checkout: Checkout, *arguments: str, until: str = "ready in", beside: Path | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A launcher process, and what it printed up to the line that has `until`."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=checkout.root,
        env={**os.environ, "PYTHONPATH": f"{beside or CHECKOUT}:{import_path(CHECKOUT)}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
    ) as process:
        try:
            yield process, read_until(process, until)
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], mark: str) -> str:
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if mark in line:
            return said
    raise AssertionError(f"it ended before {mark!r}:\n{said}")


def pid_of(service: str, said: str) -> int:
    (pid,) = re.findall(rf"{service} *\| started, process (\d+)", said)
    return int(pid)


def listening(service: str, said: str) -> str:
    (address,) = re.findall(rf"{service} *\| listens on ([0-9.:]+)", said)
    return str(address)


def pids_in(said: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"started, process (\d+)", said)]


def test_command_stops_everything_when_interrupted(checkout: Checkout) -> None:
    with running(checkout, *COMMAND, until="    gateway") as (process, said):
        pids = Pids(pids_in(said))
        process.send_signal(signal.SIGINT)
        rest = read_until(process, "all processes have been stopped")
        assert process.wait(EXIT_WAIT_S) == 0
    assert not pids.left(0)
    assert len(pids_in(said)) == len(ROLES) + 1
    assert "HTTP  http://127.0.0.1:8000" in said
    assert "thinker   http://127.0.0.1:9/metrics" in said
    assert "gateway   http://127.0.0.1:8000/metrics" in said
    assert "talker   | weights loaded" in said
    assert rest.count("was killed by SIGTERM") == len(ROLES) + 1


def test_command_stops_everything_when_terminated_before_ready(checkout: Checkout) -> None:
    checkout.write("talker", "print('stuck'); signal.pause()")
    with running(checkout, *COMMAND, until="stuck") as (process, said):
        pids = Pids(pids_in(said))
        process.terminate()
        assert process.wait(EXIT_WAIT_S) == 0
    assert not pids.left(0)


def test_command_kills_at_once_when_interrupted_twice(checkout: Checkout) -> None:
    checkout.write("talker", STUBBORN)
    with running(checkout, "-c", PATIENT, until="gRPC") as (process, said):
        pids = Pids(pids_in(said))
        process.send_signal(signal.SIGINT)
        read_until(process, "to kill all processes")
        time.sleep(SAME_REQUEST_S)
        process.send_signal(signal.SIGINT)
        read_until(process, "killing everything")
        read_until(process, "all processes have been killed")
        assert process.wait(EXIT_WAIT_S) == 128 + signal.SIGINT
    assert not pids.left(0)


def test_signals_at_the_same_time_are_one_request_to_stop(checkout: Checkout) -> None:
    """As with `timeout`, which signals the process and its group."""
    with running(checkout, *COMMAND, until="    gateway") as (process, said):
        pids = Pids(pids_in(said))
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            process.send_signal(number)
        rest = read_until(process, "all processes have been stopped")
        assert process.wait(EXIT_WAIT_S) == 0
    assert "killing everything" not in rest
    assert rest.count("stopping;") == 1
    assert not pids.left(0)


def test_empty_model_is_refused() -> None:
    """As with `antiphon serve "$MODEL"` if the variable isn't set."""
    done = subprocess.run(
        [sys.executable, "-m", "antiphon_tools.launcher", "up", "--model", ""],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "error: model: must not be empty; omit it to serve the demonstration model\n"
    )


@pytest.mark.parametrize("beside", [None, WITHOUT_LINUX], ids=["linux", "elsewhere"])
def test_command_leaves_no_child_when_killed(checkout: Checkout, beside: Path | None) -> None:
    checkout.write("talker", STUBBORN)
    with running(checkout, *COMMAND, until="gRPC", beside=beside) as (process, said):
        pids = Pids(pids_in(said))
        process.kill()
        assert not pids.left()


def test_command_fails_with_the_reason_when_a_stage_cannot_load(checkout: Checkout) -> None:
    checkout.write("talker", "sys.exit('no such device')")
    with running(checkout, *COMMAND, until="error:") as (process, said):
        assert process.wait(EXIT_WAIT_S) == 1
    assert "error: talker exited with status 1 before everything was ready" in said


def test_command_gives_the_sentence_alone_when_a_stage_refuses_to_start(checkout: Checkout) -> None:
    refusal = "sys.exit('talker: config.json has no talker_config; take another checkpoint')"
    checkout.write("talker", f"print(*range(30), sep=chr(10)); {refusal}")
    with running(checkout, *COMMAND, until="error:") as (process, said):
        assert process.stdout is not None
        assert process.stdout.read() == ""
        assert process.wait(EXIT_WAIT_S) == 1
    error = said.splitlines()[-1]
    assert error.endswith("ready: config.json has no talker_config; take another checkpoint")


@pytest.mark.parametrize("name", ["talker", "gateway"])
def test_command_starts_a_service_again_where_it_was_when_it_is_killed(
    checkout: Checkout, name: str
) -> None:
    with running(checkout, *COMMAND, until="    gateway") as (process, said):
        pid = pid_of(name, said)
        for pause in ("0.5 s", "1 s"):
            os.kill(pid, signal.SIGKILL)
            again = read_until(process, f"{name:<9}| ready after")
            assert f"{name:<9}| was killed by SIGKILL\n" in again
            assert f"{name:<9}| restarting in {pause}\n" in again
            assert listening(name, again) == listening(name, said)
            pid = pid_of(name, again)
        pids = Pids([pid])
        process.send_signal(signal.SIGINT)
        assert process.wait(EXIT_WAIT_S) == 0
    assert not pids.left(0)


@pytest.mark.parametrize("name", ["talker", "gateway"])
def test_command_stops_when_a_service_ends_and_it_is_told_to(checkout: Checkout, name: str) -> None:
    with running(checkout, *COMMAND, "--on-exit", "stop", until="    gateway") as (process, said):
        pids = Pids(pids_in(said))
        os.kill(pid_of(name, said), signal.SIGKILL)
        read_until(process, f"{name} has exited; stopping all processes")
        assert process.wait(EXIT_WAIT_S) == 1
    assert not pids.left(0)


def test_command_stops_when_interrupted_while_a_stage_is_down(checkout: Checkout) -> None:
    with running(checkout, *COMMAND, until="    gateway") as (process, said):
        os.kill(pid_of("talker", said), signal.SIGKILL)
        read_until(process, "talker   | restarting in")
        process.send_signal(signal.SIGINT)
        read_until(process, "all processes have been stopped")
        assert process.wait(EXIT_WAIT_S) == 0


def test_command_serves_the_embedded_model_when_none_is_named(checkout: Checkout) -> None:
    checkout.model.rename(checkout.embed())
    with running(checkout, *UP, until="gRPC") as (_, said):
        assert f"model {checkout.root / EMBEDDED_MODEL}\n" in said


def test_command_fails_when_no_model_is_named_and_none_is_embedded(checkout: Checkout) -> None:
    with running(checkout, *UP, until="error:") as (process, said):
        assert process.wait(EXIT_WAIT_S) == 1
    assert "error: no model was specified" in said


@pytest.mark.parametrize(
    ("options", "words", "status"),
    [
        (["--gateways", "0"], "--gateways 0: must be from 1 to 64", 2),
        (["--stage", "talker"], "--stage talker: must have the form ROLE.KEY=VALUE", 2),
        (["--replicas", "talker"], "--replicas talker: must have the form ROLE=NUMBER", 2),
        (["--stage", "talker.engine=abacus"], "stages.talker.engine: unsupported engine", 1),
        (["--config", "nowhere.yaml"], "nowhere.yaml: No such file or directory", 1),
    ],
)
def test_command_prints_one_line_when_an_option_or_a_setting_is_invalid(
    checkout: Checkout, options: list[str], words: str, status: int
) -> None:
    with running(checkout, *COMMAND, *options, until="error:") as (process, said):
        assert process.stdout is not None
        assert process.stdout.read() == ""
        assert process.wait(EXIT_WAIT_S) == status
    assert said.startswith(f"error: {words}")


def test_command_fails_when_there_is_no_checkpoint(checkout: Checkout) -> None:
    with running(checkout, *UP, "--model", "nowhere", until="error:") as (process, said):
        assert process.wait(EXIT_WAIT_S) == 1
    assert "is not a directory; use a checkpoint directory" in said
