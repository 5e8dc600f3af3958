"""Failures are recorded by pytest and summarized at the end of a CI run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from antiphon_testkit.failures import MAX_LINES, Failure, read_failures, summarize

ROOT = Path(__file__).parents[3]

PLANTED = """
import pytest

@pytest.fixture
def broken():
    print("a line that was captured")
    raise OSError("Address already in use")

@pytest.mark.parametrize("number", [1, 2])
def test_one(number):
    assert number == 3, "not three\\nsecond line"

@pytest.mark.parametrize("address", ["a@b"])
def test_address(address):
    assert not address

def test_two(broken): ...

def test_three(): ...
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the planted tests on two workers with the options of this suite; CI's folder of logs."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "test_planted.py").write_text(PLANTED)
    (folder / "test_unreadable.py").write_text("import no_such_module_anywhere")
    (folder / "pytest.ini").write_text("[pytest]\n")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--continue-on-collection-errors",
         "-n", "2", "--dist", "loadgroup", "--failures=logs/tests.failures"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )  # fmt: skip
    (folder / "logs" / "check.log").write_text("".join(f"line {each}\n" for each in range(30)))
    return folder / "logs"


def test_every_failure_is_recorded(logs: Path) -> None:
    recorded = read_failures(logs / "tests.failures")
    failures = {each.test: each for each in recorded}
    assert len(recorded) == len(failures)
    assert set(failures) == {
        "test_planted.py::test_one[1]",
        "test_planted.py::test_one[2]",
        "test_planted.py::test_address[a@b]",
        "test_planted.py::test_two",
        "test_unreadable.py",
    }
    one = failures["test_planted.py::test_one[1]"]
    assert (one.phase, one.error) == ("call", "AssertionError: not three")
    assert "second line" in one.log
    two = failures["test_planted.py::test_two"]
    assert (two.phase, two.error) == ("setup", "OSError: Address already in use")
    assert "a line that was captured" in two.log
    unreadable = failures["test_unreadable.py"]
    assert unreadable.phase == "collect"
    assert "no_such_module_anywhere" in unreadable.error


def test_summary_names_failures_of_each_phase_and_last_lines_of_others(logs: Path) -> None:
    # As CI calls it: with no package installed.
    text = subprocess.run(
        [sys.executable, "-S", "-m", "antiphon_testkit.failures", str(logs), "tests", "check"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "testkit")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    tests, check = text.split("check: failed without a failing test")
    assert "tests: 5 failures" in tests
    first = "test_one[1] (call) and 1 others of the file: AssertionError: not three"
    for expected in (first, "test_two (setup): OSError: Address already in use", "test_unreadable"):
        assert expected in tests
    assert "line 29" in check
    assert "line 1\n" not in check


def test_summary_of_many_failures_fits_on_the_last_page(tmp_path: Path) -> None:
    failures = [Failure(f"test_{each}.py::test_it", "call", "error", "log") for each in range(500)]
    records = "".join(json.dumps(asdict(each)) + "\n" for each in failures)
    (tmp_path / "tests.failures").write_text(records)
    (tmp_path / "vllm.failures").write_text(json.dumps(asdict(failures[7])) + "\n")
    lines = list(summarize(tmp_path, ["tests", "vllm"]))
    assert len(lines) <= MAX_LINES
    assert sum("more lines" in each for each in lines) == 1
    assert "vllm: 1 failures" in lines[-2]
    assert "test_7.py::test_it" in lines[-1]


def _run_on_two_workers(folder: Path, text: str) -> list[Failure]:
    (folder / "test_planted.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-n", "2", "--dist", "loadgroup",
         "--failures=tests.failures"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )  # fmt: skip
    return read_failures(folder / "tests.failures")


COLLECTED_BY_ONE = """
import os, pytest

@pytest.mark.parametrize("worker", [os.environ["PYTEST_XDIST_WORKER"]])
def test_one(worker): ...
"""

OTHER_FILES_EACH_TIME = """
import os, pytest

@pytest.mark.parametrize("file", [os.urandom(8), os.urandom(8).hex() * 100])
def test_one(file): assert not file
"""


def test_a_test_that_one_worker_did_not_collect_is_named(tmp_path: Path) -> None:
    (failure,) = _run_on_two_workers(tmp_path, COLLECTED_BY_ONE)
    assert failure.phase == "collect"
    assert failure.error.startswith("Different tests were collected between gw")
    assert "test_planted.py::test_one[gw" in failure.error


def test_workers_collect_the_same_tests_when_their_files_differ(tmp_path: Path) -> None:
    failures = _run_on_two_workers(tmp_path, OTHER_FILES_EACH_TIME)
    assert {each.test.partition("[")[2] for each in failures} == {"file0]", "file1]"}
