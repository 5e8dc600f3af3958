"""Verify and measure the code that runs on a GPU: `python -m benchmarks.gpu PART --json FILE`.

Each part is limited to a budget of less than ten minutes. When a row has been measured, it is
printed as a line of JSON and saved. A row that fails is a result as well, and the remaining rows
are still measured. Rows that do not fit into the budget are skipped and listed, together with the
command that measures them.

The exit status is 1 if a row has failed, 2 if there is no device, and 3 if the last row did not end
in time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from antiphon_services.lm.attention_calls import disable_cudnn_attention
from antiphon_tools.device import NoDevice, facts, require
from benchmarks.gpu.report import Report, Row, measured_rows

PARTS = {
    "require": "the device and the versions, without rows",
    "correctness": "attention backends, the tests that need a GPU, and equality with the reference",
    "engines": "steps of the talker, the thinker and code2wav: graphs first, then eager",
    "pipeline": "the whole pipeline as processes at several loads, and the transports",
    "traces": "one step of each engine under the profiler",
}
NO_DEVICE = 2
GRACE_S = 15.0
"""How long a row may exceed the budget, in seconds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one part and return the exit status."""
    options = _options(arguments)
    device = torch.device(options.device)
    torch.set_num_threads(options.threads)
    disable_cudnn_attention()
    try:
        require(device)
    except NoDevice as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return NO_DEVICE
    known = {"part": options.part, **facts(device)}
    print(json.dumps(known, default=str), flush=True)
    report = Report(
        known,
        options.json,
        options.budget_s,
        again=_command(options),
        measured=measured_rows(options.json) if options.rest else (),
    )
    made = tempfile.TemporaryDirectory(prefix="antiphon-gpu-")
    with report.ends_within(GRACE_S), made as directory:
        rows = _rows(options, device, Path(directory), report)
        names = options.only
        report.run(
            [each for each in rows if each.setup or all(word in each.name for word in names)]
        )
    ended = {"part": options.part, "failed": report.failed, "left_out": report.left_out}
    if report.left_out:
        ended["run"] = " ".join(_command(options))
    print(json.dumps(ended), flush=True)
    return 1 if report.failed else 0


def _command(options: argparse.Namespace) -> list[str]:
    """Return the command that measures the skipped rows."""
    command = ["python", "-m", "benchmarks.gpu", options.part]
    if options.json:
        command += ["--json", str(options.json), "--rest"]
    command += ["--device", options.device] if options.device != "cuda" else []
    return command + (["--only", *options.only] if options.only else [])


def _rows(
    options: argparse.Namespace, device: torch.device, directory: Path, report: Report
) -> list[Row]:
    # Each part has its own imports. Processes that are started by some rows import this module as
    # well.
    match options.part:
        case "correctness":
            from benchmarks.gpu.fidelity import fidelity_rows
            from benchmarks.gpu.marked_tests import marked_test_rows
            from benchmarks.gpu.sdpa import sdpa_rows

            return [
                *sdpa_rows(device, directory),
                *marked_test_rows(device, directory, left_s=lambda: report.left_s),
                *fidelity_rows(device, directory),
            ]
        case "engines":
            from benchmarks.gpu.engines import engine_rows

            return engine_rows(device, directory)
        case "pipeline":
            from benchmarks.gpu.pipeline import pipeline_rows
            from benchmarks.gpu.transport import transport_rows

            return [
                *pipeline_rows(device, directory, left_s=lambda: report.left_s),
                *transport_rows(device),
            ]
        case "traces":
            from benchmarks.gpu.traces import trace_rows

            traces = options.json.parent if options.json else directory
            return trace_rows(device, directory, traces)
        case _:
            return []


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        epilog="parts:\n" + "\n".join(f"  {name:12} {what}" for name, what in PARTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", choices=PARTS, metavar="PART", help="one of the parts below")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the rows are saved")
    parser.add_argument(
        "--budget-s", type=float, default=540.0, metavar="N", help="seconds for all rows (540)"
    )
    parser.add_argument(
        "--rest",
        action="store_true",
        help="keep the rows that FILE has, and measure those that were left out or failed",
    )
    parser.add_argument("--device", default="cuda", help="cpu: tiny sizes, to try the command")
    parser.add_argument("--threads", type=int, default=1, help="of torch on the host (1)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="rows with all of these in their name"
    )
    options = parser.parse_args(arguments)
    if options.rest and options.json is None:
        parser.error("--rest needs --json FILE, the file of an earlier run")
    return options


if __name__ == "__main__":
    sys.exit(main())
