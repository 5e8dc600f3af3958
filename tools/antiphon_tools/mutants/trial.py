"""Runs the tests on a copy of the tree that contains a mutant."""

from __future__ import annotations

import enum
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from antiphon_tools.checkout import files_of
from antiphon_tools.launcher.plan import import_path
from antiphon_tools.mutants.mutations import Mutant

FIRST = 5
"""The number of test files that are run before the remaining files are collected."""
TEST_S = 100
"""The time limit for a test in seconds. If a test takes longer, it is assumed to be in an endless
loop.
"""

_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_NOT_FOUND = 4
_TIMED_OUT = (124, 137)


class Verdict(enum.Enum):
    """The tests' verdict on a mutant.

    `LIMIT` means that no test has failed so far, but that some tests haven't been run.
    """

    KILLED = "killed"
    SURVIVED = "survived"
    LIMIT = "survived until the time limit"


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """A verdict and the name of the failed test."""

    verdict: Verdict
    test: str = ""


class ScratchTree:
    """A copy of the files that Git tracks or would add. The original tree is never modified."""

    def __init__(self, root: Path, *, limit_s: float) -> None:
        """`limit_s` is the time limit for each run of the tests."""
        self._limit_s = limit_s
        self._changes = 0
        self._folder = tempfile.TemporaryDirectory(prefix="mutants-")
        self.root = Path(self._folder.name)
        for path in files_of(root):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / path, self.root / path)

    def __enter__(self) -> ScratchTree:
        return self

    def __exit__(self, *unused: object) -> None:
        self._folder.cleanup()

    def try_mutant(self, mutant: Mutant, tests: Sequence[Path]) -> TrialOutcome:
        """Run test files until a test fails that passes without the mutation."""
        given_up: list[str] = []
        for part in filter(None, (tests[:FIRST], tests[FIRST:])):
            while True:
                with self._planted(mutant):
                    done = self._run([*map(str, part), *(f"--deselect={t}" for t in given_up)])
                if done.returncode in _TIMED_OUT:
                    return TrialOutcome(Verdict.LIMIT)
                if done.returncode in (0, 5):
                    break
                failed = _FAILED.search(done.stdout)
                if failed is None:
                    # The mutation makes pytest itself exit.
                    return TrialOutcome(Verdict.KILLED, f"exit status {done.returncode}")
                if self._passes(failed[1]):
                    return TrialOutcome(Verdict.KILLED, failed[1])
                given_up.append(failed[1])
        return TrialOutcome(Verdict.SURVIVED)

    def _passes(self, test: str) -> bool:
        """Return whether a test passes without the mutation.

        If pytest does not recognize the name of the test, its file is run instead.
        """
        status = self._run([test]).returncode
        if status == _NOT_FOUND:
            status = self._run([test.partition("::")[0]]).returncode
        return status == 0

    @contextmanager
    def _planted(self, mutant: Mutant) -> Iterator[None]:
        path = self.root / mutant.path
        whole = path.read_bytes()
        self._write(path, mutant.applied(whole))
        try:
            yield
        finally:
            self._write(path, whole)

    def _write(self, path: Path, source: bytes) -> None:
        """Write a file with a modified timestamp.

        Python detects outdated bytecode by the size of the source and its timestamp in seconds, so
        the timestamp has to differ for each write.
        """
        path.write_bytes(source)
        self._changes += 1
        os.utime(path, (self._changes, self._changes))

    def _run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        chosen = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-m", "not gpu and not slow"]
        return subprocess.run(
            [
                *("timeout", "--signal=INT", "--kill-after=30", f"{self._limit_s:g}"),
                *(sys.executable, "-m", "pytest", f"--timeout={TEST_S}", *chosen, *arguments),
            ],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": import_path(self.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
