"""Processes of a user that the system does not know, with an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UID = "54321"
_TALK = "import asyncio; from tests.cluster.one_family import talk; asyncio.run(talk('localhost'))"
_ASK = """
import getpass, os, pathlib, pwd, sys
from antiphon_services.stage.nameless_user import settle_user
try:
    pwd.getpwuid(os.getuid())
except KeyError:
    print("unknown")
settle_user()
import antiphon_services.__main__
assert not {"torch", "transformers"} & sys.modules.keys(), "they asked before"
print(getpass.getuser(), pathlib.Path.home())
(pathlib.Path.home() / "written").touch()
"""


def _command(code: str, **environment: str) -> list[str]:
    given = [f"{name}={value}" for name, value in environment.items()]
    path = f"PATH={os.environ['PATH']}"
    return [
        *("unshare", "--user", f"--map-user={UID}", "--map-group=0"),
        *("env", "-i", path, *given, sys.executable, "-c", code),
    ]


def _can_map() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(_command("0"), capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _can_map(), reason="needs unshare --map-user")


@pytest.mark.parametrize("home", [{}, {"HOME": "/nonexistent"}, {"HOME": "/proc"}])
def test_libraries_find_a_name_and_a_home(home: dict[str, str], tmp_path: Path) -> None:
    command = _command(_ASK, TMPDIR=str(tmp_path), **home)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    own = tmp_path / f"antiphon-home-{UID}"
    assert done.stdout.split() == ["unknown", f"uid_{UID}", str(own)]
    assert own.stat().st_mode & 0o077 == 0
    assert (own / "written").exists()


def test_a_home_that_others_may_write_to_is_not_taken(tmp_path: Path) -> None:
    other = tmp_path / f"antiphon-home-{UID}"
    other.mkdir()
    other.chmod(0o777)
    command = _command(_ASK, TMPDIR=str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (other / "written").exists()


def test_what_the_environment_says_is_kept(tmp_path: Path) -> None:
    command = _command(_ASK, USER="antiphon", HOME=str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["unknown", "antiphon", str(tmp_path)]


def test_a_deployment_speaks_as_a_nameless_user(tmp_path: Path) -> None:
    command = _command(_TALK, TMPDIR=str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
