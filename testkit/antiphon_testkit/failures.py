"""Failed tests as records in a file, and what CI prints of them at its end.

`pytest --failures FILE` appends one JSON object per failure. `python -m antiphon_testkit.failures
LOGS PHASE...` summarizes failed phases; it runs where nothing is installed.
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
"""Lines of a summary: CI shows about a hundred."""
MAX_WIDTH = 240
FALLBACK_LINES = 15
"""Last lines of the log of a phase that recorded no failure."""


@dataclass(frozen=True)
class Failure:
    """A failed test, or a file that could not be collected."""

    test: str
    """The node id, which pytest takes as an argument."""
    phase: str
    """`collect`, `setup`, `call` or `teardown`."""
    error: str
    """The first line of the exception."""
    log: str
    """Traceback and captured output."""

    @property
    def file(self) -> str:
        """The file of the test."""
        return self.test.partition("::")[0]


class FailureRecorder:
    """A pytest plugin that appends failures to a file as they are reported.

    The file exists from the start, so an empty one means that no test failed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A failed phase of a test."""
        if report.failed:
            self._append(report, report.when)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported."""
        if report.failed:
            self._append(report, "collect")

    def _append(self, report: pytest.TestReport | pytest.CollectReport, phase: str) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        lines = (crash.message if crash else report.longreprtext).strip().splitlines()
        # A collection error has no crash entry: its last line names the exception.
        error = (lines[0] if crash else lines[-1]) if lines else "no message"
        sections = "".join(f"\n--- {title}\n{text}" for title, text in report.sections)
        test = without_group(report.nodeid)
        failure = Failure(test, phase, error.strip(), report.longreprtext + sections)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(failure)) + "\n")


def without_group(nodeid: str) -> str:
    """Return the node id that pytest accepts as an argument.

    pytest-xdist appends "@" and the test's group. An "@" within parameters belongs to the id.
    """
    test, at, group = nodeid.rpartition("@")
    return test if at and "]" not in group else nodeid


def read_failures(path: Path) -> list[Failure]:
    """The recorded failures; none if the phase never got as far as its tests."""
    if not path.exists():
        return []
    return [Failure(**json.loads(line)) for line in path.read_text().splitlines()]


def summarize(logs: Path, phases: Iterable[str]) -> Iterator[str]:
    """Lines for the end of a run: the failed tests of each phase with their first error line.

    Tests of one file that failed with the same error share a line. A phase without records gets
    the last lines of `PHASE.log`.
    """
    phases = list(phases)
    # A heading and the count of what is left out are lines too.
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
