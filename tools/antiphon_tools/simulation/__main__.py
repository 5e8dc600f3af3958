"""Simulate the protocol with many random orders of events. Each order is determined by a seed.

The first violation ends the run. It is printed as a transcript that is as short as possible.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence

from antiphon_tools.simulation.search import (
    Found,
    link_scenario_of,
    play,
    scenario_of,
    shrink,
)

TOLD_EVERY_S = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options = _parser().parse_args(arguments)
    began = told_at = time.monotonic()
    moves = 0
    draw = link_scenario_of if options.links else scenario_of
    for done, seed in enumerate(range(options.first, options.first + options.seeds), 1):
        result = play(draw(seed))
        if isinstance(result, Found):
            links = " --links" if options.links else ""
            print(f"{shrink(result)}\nfound by --first {seed} --seeds 1{links}", file=sys.stderr)
            return 1
        moves += result
        if time.monotonic() > told_at + TOLD_EVERY_S:
            told_at = time.monotonic()
            print(f"{done} of {options.seeds} seeds, {moves} moves", flush=True)
    seconds = time.monotonic() - began
    print(f"{options.seeds} seeds, {moves} moves in {seconds:.0f} s: nothing found")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m antiphon_tools.simulation", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=10_000, help="how many (10000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument(
        "--links", action="store_true", help="only simulate single links, which is faster"
    )
    return parser


if __name__ == "__main__":
    # Every damaged ring would be logged.
    logging.disable(logging.WARNING)
    sys.exit(main())
