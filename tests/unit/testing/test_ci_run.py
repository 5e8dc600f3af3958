"""`.ci/run` with phases that are stubs: what it repeats, lists and prints last."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAMS = ("ffmpeg", "flac", "javac", "chromium", "g++")
MAKEFILE = """
record = $(patsubst --failures=%,%,$(filter --failures=%,$(ARGS)))
setup-dev setup-browser setup-docs setup-vllm setup-clients docs test-browser test-kernels test-clients:
check:
\t@echo a fault of the format; false
test-vllm:
\t@cp vllm.failures $(record); false
test-all:
\t@echo ran "$(TESTS)"; test -n "$(TESTS)" && ! test -e again_fails || { cp tests.failures $(record); false; }
"""  # noqa: E501
FAILURE = '{"test": "%s", "phase": "call", "error": "%s", "log": "%s"}\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the script, its kit and a Makefile of stubs."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / ".ci" / "flaky.txt").write_text("")
    kit = tmp_path / "testkit" / "antiphon_testkit"
    kit.mkdir(parents=True)
    for name in ("__init__.py", "failures.py", "flaky.py"):
        shutil.copy(ROOT / "testkit" / "antiphon_testkit" / name, kit)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name in PROGRAMS:
        (bin_ / name).write_text("#!/bin/sh\n")
        (bin_ / name).chmod(0o755)
    for phase, error in (("tests", "Address already in use"), ("vllm", "assert 1 == 2")):
        (tmp_path / f"{phase}.failures").write_text(FAILURE % (f"t_{phase}.py::t", error, error))
    return tmp_path


def ci_run(checkout: Path) -> tuple[int, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    run = subprocess.run(
        [checkout / ".ci" / "run"],
        env={**ours, "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}", "ARGS": "", "TESTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return run.returncode, run.stdout.split("===== all")[-1]


def test_last_lines_name_failed_tests_of_every_phase_and_flaky_ones(checkout: Path) -> None:
    status, end = ci_run(checkout)
    assert status == 1
    assert "failed: check vllm\n" in end
    assert "a fault of the format" in end
    assert "t_vllm.py::t (call): assert 1 == 2" in end
    assert (checkout / ".ci" / "flaky.txt").read_text() == "t_tests.py::t\n"
    assert (checkout / "out/ci/tests.again.log").read_text() == "ran @out/ci/tests.again\n"
    assert not (checkout / "out/ci/vllm.again.log").exists()


def test_a_flaky_test_passes_once(checkout: Path) -> None:
    makefile = (checkout / "Makefile").read_text().replace("cp vllm.failures $(record); false", "")
    (checkout / "Makefile").write_text(makefile.replace("format; false", "format"))
    assert ci_run(checkout)[0] == 0
    status, end = ci_run(checkout)
    assert status == 1
    assert "flaky, and in the last run too: t_tests.py::t (call): Address already in use" in end


def test_a_test_that_fails_again_has_failed(checkout: Path) -> None:
    (checkout / "again_fails").touch()
    status, end = ci_run(checkout)
    assert status == 1
    assert "failed: check vllm tests\n" in end
    assert "t_tests.py::t (call): Address already in use" in end
    assert (checkout / ".ci" / "flaky.txt").read_text() == ""
