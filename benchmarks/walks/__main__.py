"""How much of the gateway's code a request walks through.

`python -m benchmarks.walks [CHECKOUT ...]`: exact counts by `sys.setprofile`, with the demo
checkpoint's stages as processes and the gateway in a process that is watched, for this checkout and
for each other one. Each is measured with this interpreter and its packages. Counted are functions
and files of `antiphon_gateway` on the event loop's thread, moves from a function of one file to one
of another, and calls; a coroutine that goes on after a wait counts as called again. Functions and
files vary by a few from run to run, calls by as much as stages send meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from antiphon_tools.launcher.plan import CHECKOUT, IMPORT_ROOTS

WALK = Path(__file__).with_name("walk.py")
COUNTS = ("functions", "files", "moves", "calls")


def measured(checkout: Path) -> dict[str, Any]:
    """The walks of one checkout, by name."""
    roots = os.pathsep.join(str(checkout / root) for root in IMPORT_ROOTS)
    run = subprocess.run(
        [sys.executable, "-P", str(WALK)],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": roots},
        stdout=subprocess.PIPE,
        check=True,
    )
    walks: dict[str, Any] = json.loads(run.stdout)
    return walks


def table(walks: dict[str, dict[str, Any]]) -> str:
    """The counts as a table in Markdown, a row for each walk and checkout."""
    lines = [f"| walk | checkout | {' | '.join(COUNTS)} |", f"|---|---|{'---:|' * len(COUNTS)}"]
    names = dict.fromkeys(name for found in walks.values() for name in found)
    for name in names:
        for checkout, found in walks.items():
            counts = " | ".join(f"{found[name][each]:,}" for each in COUNTS)
            lines.append(f"| {name} | {checkout} | {counts} |")
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="*", type=Path, help="others to compare with this one")
    parser.add_argument("--json", action="store_true", help="every function by file, as JSON")
    given = parser.parse_args()
    checkouts = [*given.checkouts, CHECKOUT]
    walks = {str(each): measured(each.resolve()) for each in checkouts}
    print(json.dumps(walks, indent=1) if given.json else table(walks))


if __name__ == "__main__":
    main()
