"""The command line, as a process that gets signals."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fake_services import EXIT_WAIT_S, ROLES, STUBBORN, Checkout, Pids

from antiphon.deployment.plan import EMBEDDED_MODEL

PATIENT = """
import asyncio, sys
from pathlib import Path
from antiphon.deployment.__main__ import up
from antiphon.deployment.console import Console
from antiphon.deployment.launcher import Launcher
console = Console(sys.stdout)
launcher = Launcher(Path("model"), report=console, stop_timeout_s=10_000)
sys.exit(asyncio.run(up(launcher, console)))
"""
COMMAND = ("-m", "antiphon.deployment", "up", "--model", "model")


@contextmanager
def running(
    checkout: Checkout, *arguments: str, until: str = "ready in"
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A launcher process, and what it printed up to the line that has `until`."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=checkout.root,
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


def pids_in(said: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"started, process (\d+)", said)]


def test_command_stops_everything_when_interrupted(checkout: Checkout) -> None:
    with running(checkout, *COMMAND, until="    gateway") as (process, said):
        pids = Pids(pids_in(said))
        process.send_signal(signal.SIGINT)
        rest = read_until(process, "nothing is left running")
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
        read_until(process, "once more kills at once")
        process.send_signal(signal.SIGINT)
        assert process.wait(EXIT_WAIT_S) == 0
    assert not pids.left(0)


def test_command_leaves_no_child_when_killed(checkout: Checkout) -> None:
    checkout.write("talker", STUBBORN)
    with running(checkout, *COMMAND, until="gRPC") as (process, said):
        pids = Pids(pids_in(said))
        process.kill()
        assert not pids.left()


def test_command_fails_with_the_reason_when_a_stage_cannot_load(checkout: Checkout) -> None:
    checkout.write("talker", "sys.exit('no such device')")
    with running(checkout, *COMMAND, until="error:") as (process, said):
        assert process.wait(EXIT_WAIT_S) == 1
    assert "error: talker exited with status 1 before everything was ready" in said


def test_command_fails_when_the_gateway_ends(checkout: Checkout) -> None:
    with running(checkout, *COMMAND, until="gRPC") as (process, said):
        subprocess.run(["kill", "-9", str(pids_in(said)[-1])], check=True)
        assert process.wait(EXIT_WAIT_S) == 1


def test_command_serves_the_embedded_model_when_none_is_named(checkout: Checkout) -> None:
    checkout.model.rename(checkout.embed())
    with running(checkout, "-m", "antiphon.deployment", "up", until="gRPC") as (_, said):
        assert f"model {checkout.root / EMBEDDED_MODEL}\n" in said


def test_command_fails_when_no_model_is_named_and_none_is_embedded(checkout: Checkout) -> None:
    command = ("-m", "antiphon.deployment", "up")
    with running(checkout, *command, until="error:") as (process, said):
        assert process.wait(EXIT_WAIT_S) == 1
    assert "error: no model was named" in said


def test_command_fails_when_there_is_no_checkpoint(checkout: Checkout) -> None:
    command = ("-m", "antiphon.deployment", "up", "--model", "nowhere")
    with running(checkout, *command, until="error:") as (process, said):
        assert process.wait(EXIT_WAIT_S) == 1
    assert "config.json is missing" in said
