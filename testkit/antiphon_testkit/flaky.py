"""Detects failures that CI should retry once because they are caused by a startup, a port or a
download.

`pick LOGS PHASE` writes the failed tests of a phase to `PHASE.again`, an argument file for pytest,
or exits with status 1 if the phase should not be repeated. `settle LOGS LIST PHASE...` reports the
tests that passed when they were repeated, and writes them to a list. It exits with status 1 if a
test was already on the list.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from antiphon_testkit.failures import Failure, read_failures

MAX_REPEATED = 5
"""If there are more failures than this, they probably share a cause and didn't happen by chance."""
REPEATED = re.compile(
    r"(?i:address already in use)|\bEADDRINUSE\b|Failed to bind"
    r"|not ready after [\d.]+ s"
    r"|(?i:download[^\n]*timed? ?out|\bread timed out|\bConnectTimeout)"
)
"""Matches the log of a test that failed because of a startup, a port or a download."""
NEVER = re.compile(r"equality|conformance|chaos|simulat")
"""Parts of node IDs that are never repeated. A difference from the reference or a violated
invariant is a bug, no matter how rarely it occurs.
"""


def is_repeated(failure: Failure) -> bool:
    """Return whether it is worth repeating the test once."""
    return not NEVER.search(failure.test) and REPEATED.search(failure.log) is not None


def pick(logs: Path, phase: str) -> list[str]:
    """Return the failed tests of a phase that should be repeated. The result is empty if any
    failure is of a different kind.
    """
    log = logs / f"{phase}.log"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    # pytest's exit status 1 means that tests failed. Any other status means that the run was not
    # completed.
    if not lines or not re.match(r"make.*\bError 1$", lines[-1]):
        return []
    failures = read_failures(logs / f"{phase}.failures")
    tests = list(dict.fromkeys(each.test for each in failures))
    if len(tests) > MAX_REPEATED or not all(is_repeated(each) for each in failures):
        return []
    return tests


def settle(logs: Path, listed: Path, phases: Iterable[str]) -> bool:
    """Report the repeated tests of these phases together with their first logs, and write the list.
    Returns whether none of the tests was already on the list from the previous run.
    """
    before = set(listed.read_text().splitlines()) if listed.exists() else set()
    flaky = []
    for phase in phases:
        for each in read_failures(logs / f"{phase}.failures"):
            flaky.append(each.test)
            again = ", and in the last run too" if each.test in before else ""
            print(f"flaky{again}: {each.test} ({each.phase}): {each.error}"[:240])
            print(f"  first log: {logs / phase}.log")
    listed.write_text("".join(f"{test}\n" for test in dict.fromkeys(flaky)))
    return before.isdisjoint(flaky)


def main(command: str, logs: Path, *args: str) -> int:
    """Run one of the two commands, and return its exit status."""
    if command == "pick":
        (phase,) = args
        tests = pick(logs, phase)
        (logs / f"{phase}.again").write_text("".join(f"{test}\n" for test in tests))
        return 0 if tests else 1
    listed, *phases = args
    return 0 if settle(logs, Path(listed), phases) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
