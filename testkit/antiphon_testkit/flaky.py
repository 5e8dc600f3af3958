"""Failures that CI repeats once: those of a start-up, a port or a download.

`pick LOGS PHASE` writes the tests of a failed phase to `PHASE.again`, an argument file of pytest,
or ends with status 1 if the phase is not to be repeated. `settle LOGS LIST PHASE...` reports the
tests that passed when they were repeated, and writes their list. It ends with status 1 if a test
was in the list already.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from antiphon_testkit.failures import Failure, read_failures

MAX_REPEATED = 5
"""More failures than this have one cause that is not chance."""
REPEATED = re.compile(
    r"Address already in use|\bEADDRINUSE\b|Failed to bind"
    r"|not ready after [\d.]+ s"
    r"|(?i:download[^\n]*timed? ?out|\bread timed out|\bConnectTimeout)"
)
"""What the log of a start-up, port or download failure has."""
NEVER = re.compile(r"equality|conformance|chaos|simulat")
"""Parts of node ids. A difference or a broken invariant is a fault however rarely it comes."""


def is_repeated(failure: Failure) -> bool:
    """Whether a failure is worth one repetition."""
    return not NEVER.search(failure.test) and REPEATED.search(failure.log) is not None


def pick(logs: Path, phase: str) -> list[str]:
    """The tests of a failed phase to repeat; none if any of its failures is of another kind."""
    log = logs / f"{phase}.log"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    # pytest's status 1 says that tests failed; others, that it did not run to its end.
    if not lines or not re.match(r"make.*\bError 1$", lines[-1]):
        return []
    failures = read_failures(logs / f"{phase}.failures")
    tests = list(dict.fromkeys(each.test for each in failures))
    if len(tests) > MAX_REPEATED or not all(is_repeated(each) for each in failures):
        return []
    return tests


def settle(logs: Path, listed: Path, phases: Iterable[str]) -> bool:
    """Report the phases' repeated tests with their first logs and list them; whether none of them
    was in the list of the last run."""
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
    """One of the two commands; its exit status."""
    if command == "pick":
        (phase,) = args
        tests = pick(logs, phase)
        (logs / f"{phase}.again").write_text("".join(f"{test}\n" for test in tests))
        return 0 if tests else 1
    listed, *phases = args
    return 0 if settle(logs, Path(listed), phases) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
