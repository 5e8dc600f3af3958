"""Create random mutants of the code and report which ones the tests detect."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from antiphon_tools.mutants.mutations import Mutant, draw, mutants_of, settings_of
from antiphon_tools.mutants.selection import LikelyTests
from antiphon_tools.mutants.trial import ScratchTree, Verdict

PACKAGES = ("antiphon", "gateway", "services", "testkit", "tools")
FILES = (
    "gateway/*",
    "antiphon/client/*",
    "antiphon/runtime/*",
    "services/antiphon_services/text/*",
    "services/antiphon_services/thinker/*",
    "services/*/prompt.py",
    "services/*/front_end.py",
    "services/*/rows.py",
    "services/*/reference.py",
)
"""Files of the gateway, the SDK and the stage runtime, and the text and prompt processing of model
families.
"""
SETTINGS = ("antiphon/deployment/schema.py", "antiphon/runtime/session/plan.py")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 1 if a mutant survived."""
    parser = argparse.ArgumentParser(prog="python -m antiphon_tools.mutants", description=__doc__)
    parser.add_argument(
        "--seed", type=int, help=("seed of the sample (default: a new one each time)")
    )
    parser.add_argument("--count", type=int, default=40, help="number of mutants")
    parser.add_argument("--files", nargs="+", default=FILES, help="patterns of the files to mutate")
    parser.add_argument(
        "--tests", type=int, default=25, help=("maximum number of test files per mutant")
    )
    parser.add_argument(
        "--limit", type=float, default=180, help=("time limit for each test run in seconds")
    )
    parser.add_argument(
        "--only", nargs="+", type=int, help=("only run these mutants of the sample, by number")
    )
    parser.add_argument(
        "--list", action="store_true", help=("only print the mutants and their tests")
    )
    given = parser.parse_args(arguments)
    root = Path.cwd()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    mutants = _all_mutants(root, given.files)
    drawn = draw(mutants, given.count, seed)
    files = len({each.path for each in mutants})
    print(f"seed {seed}: {len(drawn)} of {len(mutants)} mutants of {files} files", flush=True)
    selection = LikelyTests(root, PACKAGES)
    survived = []
    chosen = [
        (number, mutant)
        for number, mutant in enumerate(drawn, 1)
        if given.only is None or number in given.only
    ]
    with ScratchTree(root, limit_s=given.limit) as scratch:
        for number, mutant in chosen:
            tests = selection.ranked(mutant.path)[: given.tests]
            print(f"{number}/{len(drawn)} {mutant}", flush=True)
            if given.list:
                print(*(f"    {test}" for test in tests), sep="\n")
                continue
            began = time.monotonic()
            outcome = scratch.try_mutant(mutant, tests)
            took = f"({time.monotonic() - began:.0f} s)"
            print("   ", outcome.verdict.value, outcome.test, took, flush=True)
            if outcome.verdict is not Verdict.KILLED:
                survived.append((mutant, outcome.verdict))
    if not given.list:
        killed = len(chosen) - len(survived)
        print(f"seed {seed}: {killed} of {len(chosen)} killed", flush=True)
    for mutant, verdict in survived:
        print(f"{verdict.value}: {mutant}")
    return 1 if survived else 0


def _all_mutants(root: Path, patterns: Sequence[str]) -> list[Mutant]:
    siblings = settings_of((root / name).read_bytes() for name in SETTINGS)
    mutants = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root)
            if any(fnmatch(str(name), pattern) for pattern in patterns):
                mutants += mutants_of(name, path.read_bytes(), siblings)
    return mutants


if __name__ == "__main__":
    sys.exit(main())
