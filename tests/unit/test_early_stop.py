"""Services that are the first process of a container and are stopped while they import modules."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.early_stop import KILLED
from antiphon_tools.launcher.plan import CHECKOUT, import_path
from tests.pid_namespace import NAMESPACE, needs_namespace

LONG_S = 240.0
# A module that every service imports. Its import takes forever.
SLOW = "import os, threading; print('importing', os.getpid(), flush=True); threading.Event().wait()"
COMMAND = "import sys; from antiphon_tools.command import main; sys.exit(main())"


@needs_namespace
@pytest.mark.parametrize(
    "command",
    [
        ("-m", "antiphon_services", "thinker"),
        ("-m", "antiphon_gateway"),
        ("-m", "antiphon_tools.launcher", "stages", "thinker"),
        ("-c", COMMAND, "stage", "thinker"),
        ("-c", COMMAND, "gateway"),
    ],
    ids=["stage", "gateway", "stages", "antiphon stage", "antiphon gateway"],
)
def test_sigterm_ends_a_service_that_is_the_first_process_during_its_imports(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "msgspec.py").write_text(SLOW)
    path = f"{tmp_path}{os.pathsep}{import_path(CHECKOUT)}"
    with subprocess.Popen(
        [*NAMESPACE, sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    ) as outside:
        try:
            assert outside.stdout is not None
            assert outside.stdout.readline() == "importing 1\n"
            children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text()
            os.kill(int(children), signal.SIGTERM)
            assert outside.wait(LONG_S) == KILLED + signal.SIGTERM
        finally:
            outside.kill()


def test_other_processes_are_ended_by_the_signal_itself(tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text(SLOW)
    path = f"{tmp_path}{os.pathsep}{import_path(CHECKOUT)}"
    with subprocess.Popen(
        [sys.executable, "-m", "antiphon_gateway"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    ) as gateway:
        assert gateway.stdout is not None
        assert gateway.stdout.readline().startswith("importing")
        gateway.terminate()
        assert gateway.wait(LONG_S) == -signal.SIGTERM
