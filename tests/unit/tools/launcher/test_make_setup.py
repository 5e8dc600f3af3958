"""`make setup`: what installs the packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


def _setup(tmp_path: Path, *variables: str, **environment: str) -> str:
    """What `make setup` would run in an empty copy."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    return subprocess.run(
        ["make", "--dry-run", "setup", *variables],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment,
    ).stdout


@pytest.fixture
def with_uv(tmp_path: Path) -> str:
    """A PATH on which uv is."""
    folder = tmp_path / "programs"
    folder.mkdir()
    program = folder / "uv"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_uv_installs_where_it_is_on_path(tmp_path: Path, with_uv: str) -> None:
    commands = _setup(tmp_path, PATH=with_uv)
    assert "programs/uv pip install --python .venv/bin/python" in commands
    assert "-m pip install" not in commands


def test_pip_installs_where_it_is_chosen(tmp_path: Path, with_uv: str) -> None:
    chosen = (
        _setup(tmp_path, "UV=", PATH=with_uv),
        _setup(tmp_path, PATH=with_uv, UV=""),
    )
    for commands in chosen:
        assert ".venv/bin/python -m pip install --editable" in commands
        assert "uv pip" not in commands


def test_pip_installs_where_uv_is_not(tmp_path: Path) -> None:
    path = os.pathsep.join(
        each for each in ("/usr/bin", "/bin") if not (Path(each) / "uv").exists()
    )
    commands = _setup(tmp_path, PATH=path)
    assert ".venv/bin/python -m pip install --editable" in commands
