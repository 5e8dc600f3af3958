"""Tiers divide the suite, and the fast one runs without torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import FAST, NEED_TORCH, SYSTEM, TESTS, is_ignored

ROOT = TESTS.parent


def pytest_run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_fast_tier_is_collected_without_torch() -> None:
    run = pytest_run(ROOT, "--tier", "fast", "--collect-only", "-q")
    assert run.returncode == 0, run.stdout[-2000:]
    assert "tests/unit/gateway/" in run.stdout
    assert "tests/unit/services/" not in run.stdout


@pytest.mark.parametrize(
    "text", ["import torch\n\ndef test_it(): ...", "def test_it():\n    import torch"]
)
def test_fast_tier_fails_when_torch_is_imported(tmp_path: Path, text: str) -> None:
    (tmp_path / "test_planted.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    run = pytest_run(tmp_path, "-p", "tests.conftest", "--tier", "fast", "test_planted.py")
    assert run.returncode != 0
    assert "imports torch" in run.stdout + run.stderr


def test_folders_and_files_of_tiers_exist() -> None:
    assert all(each.is_dir() for each in FAST | SYSTEM)
    assert all(each.is_file() for each in NEED_TORCH)


def test_every_file_is_in_a_tier_and_fast_ones_are_of_a_commit() -> None:
    files = sorted(TESTS.rglob("test_*.py"))
    fast = {each for each in files if not is_ignored(each, "fast")}
    commit = {each for each in files if not is_ignored(each, "commit")}
    assert TESTS / "unit" / "test_options.py" in fast
    assert fast < commit < set(files)
    assert all(not is_ignored(each, "system") for each in files)


def test_tests_of_a_file_run_on_one_worker(tmp_path: Path) -> None:
    files = ("test_first.py", "test_second.py")
    for name in files:
        (tmp_path / name).write_text(
            "import pytest\n\n"
            '@pytest.mark.parametrize("number", range(6))\n'
            "def test_it(number): ...\n"
        )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    scheduling = ("-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder")
    run = pytest_run(tmp_path, "-p", "tests.conftest", *scheduling, "--verbose")
    assert run.returncode == 0, run.stdout[-2000:]
    ran = re.findall(r"\[(gw\d)\].* PASSED (test_\w+\.py)::", run.stdout)
    assert len(ran) == 12, run.stdout
    assert len({worker for worker, _ in ran}) == 2
    for name in files:
        assert len({worker for worker, file in ran if file == name}) == 1, run.stdout
