"""Proves and measures what runs on a GPU: `python -m benchmarks.gpu AREA --json FILE`.

Each row is printed, and written to the file, as soon as it is there; a row that fails is a result
and the others go on. Rows for which no time is left are skipped and named. The status is 1 when a
row failed or showed what must not be, and 2 without a device.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu.machine import NoDevice, facts, require
from benchmarks.gpu.report import Report, Row
from services.lm.attention_calls import disable_cudnn_attention

AREAS = ("require", "fidelity", "engines", "transport", "pipeline")
NO_DEVICE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one area; the exit status."""
    options = _options(arguments)
    device = torch.device(options.device)
    torch.set_num_threads(options.threads)
    disable_cudnn_attention()
    try:
        require(device)
    except NoDevice as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return NO_DEVICE
    known = facts(device)
    for name, value in known.items():
        print(f"{name}: {value}")
    report = Report({"area": options.area, **known}, options.json, options.budget_s)
    with tempfile.TemporaryDirectory(prefix="antiphon-gpu-") as directory:
        rows = _rows(options, device, Path(directory), report)
        report.run([each for each in rows if all(word in each.name for word in options.only)])
    for name in report.skipped:
        print(f"skipped: {name}")
    for name in report.failed:
        print(f"FAILED: {name}")
    return 1 if report.failed else 0


def _rows(
    options: argparse.Namespace, device: torch.device, directory: Path, report: Report
) -> list[Row]:
    # Each has imports of its own, and the processes that some of them start import this module.
    match options.area:
        case "fidelity":
            from benchmarks.gpu.fidelity import fidelity_rows

            return fidelity_rows(device, directory)
        case "engines":
            from benchmarks.gpu.engines import engine_rows

            return engine_rows(device, options.json.parent if options.json else None)
        case "transport":
            from benchmarks.gpu.transport import transport_rows

            return transport_rows(device)
        case "pipeline":
            from benchmarks.gpu.pipeline import pipeline_rows

            return pipeline_rows(device, directory, left_s=lambda: report.left_s)
        case _:
            return []


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("area", choices=AREAS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the rows go")
    parser.add_argument(
        "--budget-s", type=float, default=540.0, metavar="N", help="seconds in all (540)"
    )
    parser.add_argument("--device", default="cuda", help="cpu: tiny sizes, to try the command")
    parser.add_argument("--threads", type=int, default=1, help="of torch on the host (1)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="rows with all of these in their name"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
