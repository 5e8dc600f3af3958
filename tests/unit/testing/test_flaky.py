"""CI repeats failures of start-ups, ports and downloads once, and no others."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from antiphon_testkit.failures import Failure
from antiphon_testkit.flaky import MAX_REPEATED, main, pick

PORT = "OSError: [Errno 98] Address already in use"
START = "StartupError: not ready after 120 s: talker (starting)"
TEST = "tests/integration/test_services.py::test_it[a b]"


def failed_phase(logs: Path, *failures: tuple[str, str], status: int = 1) -> Path:
    records = [Failure(test, "setup", log, f"Traceback\n{log}\n") for test, log in failures]
    text = "".join(json.dumps(asdict(each)) + "\n" for each in records)
    (logs / "tests.failures").write_text(text)
    (logs / "tests.log").write_text(f"...\nmake: *** [Makefile:9: test-all] Error {status}\n")
    return logs


@pytest.mark.parametrize(
    "log",
    [
        PORT,
        START,
        # As asyncio says it.
        "OSError: [Errno 98] error while attempting to bind on address: address already in use",
        "RuntimeError: Failed to bind to address 127.0.0.1:8000",
        "pip: Read timed out.",
        "download of model.safetensors timed out",
    ],
)
def test_start_ups_ports_and_downloads_are_repeated(tmp_path: Path, log: str) -> None:
    assert pick(failed_phase(tmp_path, (TEST, log)), "tests") == [TEST]
    assert main("pick", tmp_path, "tests") == 0
    assert (tmp_path / "tests.again").read_text() == f"{TEST}\n"


@pytest.mark.parametrize(
    "failures",
    [
        [(TEST, "AssertionError: assert 3 == 4")],
        [(TEST, "Failed: Timeout (>300.0s) from pytest-timeout.")],
        [(TEST, PORT), (TEST.replace("test_it", "test_other"), "AssertionError: no")],
        [("tests/equality/test_fidelity.py::test_it", PORT)],
        [("tests/conformance/test_killed_peers.py::test_it", START)],
        [("tests/integration/test_chaos_run.py::test_it", START)],
        [("tests/unit/tools/simulation/test_simulated_protocol.py::test_it", PORT)],
        [(f"{TEST}{number}", PORT) for number in range(MAX_REPEATED + 1)],
        [],
    ],
)
def test_others_are_not_repeated(tmp_path: Path, failures: list[tuple[str, str]]) -> None:
    assert pick(failed_phase(tmp_path, *failures), "tests") == []
    assert main("pick", tmp_path, "tests") == 1


def test_a_run_that_did_not_end_is_not_repeated(tmp_path: Path) -> None:
    assert pick(failed_phase(tmp_path, (TEST, PORT), status=2), "tests") == []
    (tmp_path / "tests.log").unlink()
    assert pick(tmp_path, "tests") == []


def test_a_flaky_test_is_listed_and_fails_when_it_was_listed_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed_phase(tmp_path, (TEST, PORT))
    listed = tmp_path / "flaky.txt"
    assert main("settle", tmp_path, str(listed), "tests") == 0
    assert listed.read_text() == f"{TEST}\n"
    assert f"flaky: {TEST} (setup): {PORT}" in capsys.readouterr().out
    assert main("settle", tmp_path, str(listed), "tests") == 1
    assert "in the last run too" in capsys.readouterr().out
    # A run without flaky tests forgets them.
    assert main("settle", tmp_path, str(listed)) == 0
    assert listed.read_text() == ""
    assert main("settle", tmp_path, str(listed), "tests") == 0
