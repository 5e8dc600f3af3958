"""Records failed tests in a file, and summarizes them at the end of a CI run.

`pytest --failures FILE` appends one JSON object per failure. `python -m antiphon_testkit.failures
LOGS PHASE...` summarizes the failed phases. It works even if no packages are installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

MAX_LINES = 80
"""The maximum number of lines in a summary. CI displays about a hundred."""
MAX_WIDTH = 240
FALLBACK_LINES = 15
"""The number of lines to show from the end of the log if a phase failed without recording a
failure.
"""


@dataclass(frozen=True)
class Failure:
    """A failed test, or a file that could not be collected."""

    test: str
    """The node ID, which can be passed to pytest."""
    phase: str
    """`collect`, `setup`, `call` or `teardown`."""
    error: str
    """The first line of the exception."""
    log: str
    """The traceback and the captured output."""

    @property
    def file(self) -> str:
        """The file that contains the test."""
        return self.test.partition("::")[0]


class FailureRecorder:
    """A pytest plugin that appends each failure to a file as soon as it is reported.

    The file is created at the start, so if it is empty, no test failed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test phase that failed."""
        if report.failed:
            self._append(report, report.when)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that can't be imported."""
        if report.failed:
            self._append(report, "collect")

    def _append(self, report: pytest.TestReport | pytest.CollectReport, phase: str) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        lines = (crash.message if crash else report.longreprtext).strip().splitlines()
        # A collection error doesn't have a crash entry, but its last line contains the exception.
        error = (lines[0] if crash else lines[-1]) if lines else "no message"
        if lines and lines[0].startswith("Different tests were collected"):
            # pytest-xdist shows a unified diff of the node IDs.
            changed = [line for line in lines if line[:1] in "+-" and line[1:2] not in "+-"]
            error = f"{lines[0]} {changed[0] if changed else ''}"
        sections = "".join(f"\n--- {title}\n{text}" for title, text in report.sections)
        test = without_group(report.nodeid)
        failure = Failure(test, phase, error.strip(), report.longreprtext + sections)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(failure)) + "\n")


def without_group(nodeid: str) -> str:
    """Return the node ID in the form that can be passed to pytest.

    pytest-xdist appends "@" and the test's group. An "@" within parameters is part of the ID.
    """
    test, at, group = nodeid.rpartition("@")
    return test if at and "]" not in group else nodeid


def read_failures(path: Path) -> list[Failure]:
    """Return the recorded failures, or an empty list if the phase never got as far as running its
    tests.
    """
    if not path.exists():
        return []
    return [Failure(**json.loads(line)) for line in path.read_text().splitlines()]


def summarize(logs: Path, phases: Iterable[str]) -> Iterator[str]:
    """Yield the lines to print at the end of a run. They list the failed tests of each phase, with
    the first line of each error.

    Tests in the same file that failed with the same error share a line. For a phase without
    recorded failures, the last lines of `PHASE.log` are shown.
    """
    phases = list(phases)
    # The heading, and the line with the number of omitted failures, also count.
    share = MAX_LINES // max(1, len(phases)) - 2
    for phase in phases:
        failures = read_failures(logs / f"{phase}.failures")
        if failures:
            yield f"{phase}: {len(failures)} failures, in full in {logs / phase}.log"
            lines = list(_grouped(failures))
        else:
            yield f"{phase}: failed without a failing test, last lines of {logs / phase}.log"
            log = logs / f"{phase}.log"
            text = log.read_text(errors="replace") if log.exists() else ""
            lines = text.splitlines()[-FALLBACK_LINES:]
        for line in lines[:share]:
            yield f"  {line}"[:MAX_WIDTH]
        if len(lines) > share:
            yield f"  ... and {len(lines) - share} more lines"


def _grouped(failures: list[Failure]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[Failure]] = {}
    for each in failures:
        groups.setdefault((each.file, each.error), []).append(each)
    for (_, error), group in groups.items():
        others = f" and {len(group) - 1} others of the file" if len(group) > 1 else ""
        yield f"{group[0].test} ({group[0].phase}){others}: {error}"


if __name__ == "__main__":
    for line in summarize(Path(sys.argv[1]), sys.argv[2:]):
        print(line)
