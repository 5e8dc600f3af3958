"""The command without a standard output: the services run nevertheless."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from antiphon_tools.launcher.console import Console
from antiphon_tools.launcher.first_process import open_standard_streams
from antiphon_tools.launcher.plan import CHECKOUT, import_path
from tests.unit.tools.launcher.fake_services import EXIT_WAIT_S, Checkout

GATEWAY_WITH_MARK = """
say(event="listening", http="127.0.0.1:8000", grpc="127.0.0.1:9000")
say(event="ready", seconds=0.1)
print("hello")
open(os.environ["STARTED"], "w").write(str(os.getppid()))
signal.pause()
"""
# The first one prints more than the launcher keeps, and exits.
GATEWAY_WITH_MUCH_OUTPUT = """
say(event="listening", http="127.0.0.1:8000", grpc="127.0.0.1:9000")
say(event="ready", seconds=0.1)
if not os.path.exists("printed"):
    for _ in range(3000):
        print("x" * 1023)
    open("printed", "w").close()
    sys.exit(3)
open(os.environ["STARTED"], "w").write(str(os.getppid()))
signal.pause()
"""
COMMAND = (
    *(sys.executable, "-m", "antiphon_tools.launcher", "up", "--model", "model"),
    *("--port", "0", "--grpc-port", "0"),
)


def run_until_started(
    checkout: Checkout,
    tmp_path: Path,
    shell: str,
    command: Sequence[str] = COMMAND,
    gateway: str = GATEWAY_WITH_MARK,
    *,
    stalled: bool = False,
) -> tuple[int, str]:
    """The exit status and the standard error of a command that a shell starts and that is
    interrupted when its gateway runs. The output of the shell is a pipe without a reader, or with
    one that has stalled.
    """
    checkout.write("gateway", gateway)
    started = tmp_path / "started"
    os.mkfifo(started)
    # With the first of these, nothing would be left to be printed at the exit. The others print.
    empty = dict.fromkeys(("PYTHONUNBUFFERED", "PYTHONWARNINGS", "PYTHONDEVMODE"), "")
    environment = {**os.environ, "PYTHONPATH": import_path(CHECKOUT), **empty}
    source, sink = os.pipe()
    if not stalled:
        os.close(source)
    with subprocess.Popen(
        ["sh", "-c", shell, "sh", *command],
        cwd=checkout.root,
        env={**environment, "STARTED": str(started)},
        stdout=sink,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(sink)
        try:
            launcher = written_to(started, process)
            if launcher is not None:
                os.kill(launcher, signal.SIGINT)
            _, said = process.communicate(timeout=EXIT_WAIT_S)
            assert launcher is not None, said
        finally:
            process.kill()
            if stalled:
                os.close(source)
    return process.returncode, said


def written_to(fifo: Path, process: subprocess.Popen[str]) -> int | None:
    """The number that is written to a FIFO, or None if the process ends first."""
    read_end = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    ended = os.pidfd_open(process.pid)
    try:
        select.select([read_end, ended], [], [], EXIT_WAIT_S)
        return int(os.read(read_end, 64))
    except BlockingIOError:
        return None
    finally:
        os.close(read_end)
        os.close(ended)


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        ('exec "$@" >&-', ""),
        ('exec "$@" <&- >&-', ""),
        ('exec "$@" >/dev/full', "No space left on device; the services keep running\n"),
        ('exec "$@"', "Broken pipe; the services keep running\n"),
    ],
    ids=["closed", "input closed too", "full disk", "broken pipe"],
)
def test_services_run_when_nothing_can_be_printed(
    checkout: Checkout, tmp_path: Path, shell: str, words: str
) -> None:
    status, said = run_until_started(checkout, tmp_path, shell)
    warning = "warning: can't print to the standard output: "
    assert said == (warning + words if words else "")
    assert status == 0


def test_services_are_restarted_and_stopped_when_the_reader_has_stalled(
    checkout: Checkout, tmp_path: Path
) -> None:
    status, said = run_until_started(
        *(checkout, tmp_path, 'exec "$@"', COMMAND, GATEWAY_WITH_MUCH_OUTPUT), stalled=True
    )
    lost = re.fullmatch(
        r"warning: the standard output was not being read; (\d+) lines were not printed\n", said
    )
    assert lost is not None, said
    # A pipe has room for a part of them.
    assert 2900 < int(lost[1]) < 3100
    assert status == 0


def test_lines_are_printed_again_when_the_disk_has_space(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as stream:
        console = Console(stream)
        console.say("lost")
        console.say("lost too")
        with open(tmp_path / "log", "w") as file:
            os.dup2(file.fileno(), stream.fileno())
        console.say("printed")
        console.close()
    assert (tmp_path / "log").read_text().endswith("printed\n")
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_only_closed_standard_streams_are_opened() -> None:
    before = [os.fstat(number) for number in range(3)]
    open_standard_streams()
    after = [os.fstat(number) for number in range(3)]
    assert [(each.st_dev, each.st_ino) for each in after] == [
        (each.st_dev, each.st_ino) for each in before
    ]
