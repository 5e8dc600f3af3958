"""Measure how much of the gateway's code a request executes.

`python -m benchmarks.walks [CHECKOUT ...]` prints exact counts from `sys.setprofile`. The stages of
the demo checkpoint run as processes, and the gateway runs in a process that is observed. This
checkout and each of the other checkouts are measured with this interpreter and its packages.

The counts include functions and files of `antiphon_gateway` on the event loop's thread, transitions
between functions of different files, and calls. A coroutine that is resumed after a wait counts as
another call. A chat is requested several times, and the request with the fewest calls is counted.
The failover happens once, so its counts include the text, health checks and load reports that
arrive in the meantime. With `--json`, the files are listed in the order of their first call.
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
    """Return the results of a checkout by name."""
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
    """Return the counts as a Markdown table with one row per request type and checkout."""
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
    parser.add_argument(
        "--json", action="store_true", help="every function and its calls by file, as JSON"
    )
    given = parser.parse_args()
    checkouts = [*given.checkouts, CHECKOUT]
    walks = {str(each): measured(each.resolve()) for each in checkouts}
    print(json.dumps(walks, indent=1) if given.json else table(walks))


if __name__ == "__main__":
    main()
