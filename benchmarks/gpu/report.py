"""Measures rows of figures within a time budget, and prints and saves each row.

A row is a line of JSON. Its first figure is the CPU time of this process and its descendants. Rows
that do not fit into the budget are skipped, and the command that measures them is reported.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.comparison.processes import descendants, tree_cpu_s

Figures = dict[str, Any]
HOLDS = "holds"
"""The figure that states whether a row meets its expectation. Rows without an expectation do not
have it.
"""
LEFT_OUT, RUN = "left_out", "run"
CUT = 3
"""The exit status if the last row did not end in time."""


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement. It is skipped if less than `least_s` seconds of the budget remain.

    Other rows depend on a `setup` row, so it is also run if only some of the rows are measured.
    """

    name: str
    measure: Callable[[], Figures]
    least_s: float = 0.0
    setup: bool = False


def mirrored(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, followed by the same rows in reverse order (A B B A).

    This way, a device that changes its speed during the run does not favor any of them. The second
    row of a pair is named "..., again".
    """
    if len(rows) < 2:
        return list(rows)
    return [*rows, *again(rows)]


def again(rows: Sequence[Row]) -> list[Row]:
    """Return the second half of `mirrored`."""
    return [replace(row, name=f"{row.name}, again") for row in reversed(rows)]


class Report:
    """The rows of a run. They are saved to a JSON file after each measurement.

    `again` is the command that measures the skipped rows. `measured` contains rows of an earlier
    run, which stay in the file and are not measured again.
    """

    def __init__(
        self,
        facts: Mapping[str, Any],
        path: Path | None,
        budget_s: float,
        *,
        again: Sequence[str] = (),
        measured: Collection[Figures] = (),
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = tree_cpu_s,
    ) -> None:
        self._facts, self._path, self._clock = dict(facts), path, clock
        self._cpu_clock = cpu_clock
        self._ends_at = clock() + budget_s
        self._budget_s = budget_s
        self._again = shlex.join(again)
        self._before = {each["name"] for each in measured}
        self._running: Row | None = None
        self._waiting: list[Row] = []
        self.rows: list[Figures] = list(measured)

    @property
    def left_s(self) -> float:
        """The remaining budget in seconds."""
        return self._ends_at - self._clock()

    @property
    def failed(self) -> list[str]:
        """The names of rows that raised an error or did not meet their expectation."""
        return [
            each["name"] for each in self.rows if "error" in each or each.get(HOLDS, True) is False
        ]

    @property
    def left_out(self) -> list[str]:
        """The names of rows that were skipped."""
        return [each["name"] for each in self.rows if LEFT_OUT in each]

    def run(self, rows: Sequence[Row]) -> None:
        """Measure the rows one after another. If a row raises an error, this is its result."""
        self._waiting = [each for each in rows if each.setup or each.name not in self._before]
        while self._waiting:
            row = self._waiting.pop(0)
            started = self._clock()
            if self.left_s <= row.least_s:
                self._leave_out(row)
                continue
            self._running = row
            before_s = self._cpu_clock()
            figures = _measured(row)
            figures = {"cpu_s": round(self._cpu_clock() - before_s, 2), **figures}
            self._running = None
            self._add({"name": row.name, **figures, "took_s": round(self._clock() - started, 2)})

    @contextmanager
    def ends_within(self, grace_s: float) -> Iterator[None]:
        """Exit the process at this time after the budget, even if a row is still running.

        The file then states which row did not end, and the exit status is `CUT`.
        """
        # A row that holds the interpreter's lock prevents the timer from running, but not this
        # function.
        faulthandler.dump_traceback_later(self.left_s + 2 * grace_s, exit=True, file=sys.__stderr__)
        timer = threading.Timer(self.left_s + grace_s, self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            faulthandler.cancel_dump_traceback_later()

    def _cut(self) -> None:
        if (row := self._running) is None:
            return
        told = f"did not end within the budget of {self._budget_s:.0f} s"
        faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
        self._add({"name": row.name, "error": told})
        for each in self._waiting:
            self._leave_out(each)
        sys.stdout.flush()
        for pid in descendants(os.getpid()):
            # The process may have ended since it was listed.
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)
        os._exit(CUT)

    def _leave_out(self, row: Row) -> None:
        needs = f", and it may need {row.least_s:.0f} s" if row.least_s else ""
        reason = f"{max(self.left_s, 0.0):.0f} s of {self._budget_s:.0f} s remain{needs}"
        self._add({"name": row.name, LEFT_OUT: reason, RUN: self._again})

    def _add(self, figures: Figures) -> None:
        self.rows = [each for each in self.rows if each["name"] != figures["name"]] + [figures]
        print(json.dumps({k: v for k, v in figures.items() if k != "where"}, default=str))
        sys.stdout.flush()
        if self._path is not None:
            # If the run is interrupted, or the file is read during the run, the file is still
            # complete.
            written = self._path.with_name(f"{self._path.name}.part")
            content = {**self._facts, "rows": self.rows}
            written.write_text(json.dumps(content, indent=1, default=str) + "\n", "utf-8")
            os.replace(written, self._path)


def measured_rows(path: Path) -> list[Figures]:
    """Return the rows in the file of an earlier run, except for rows that were skipped or
    failed.
    """
    if not path.exists():
        return []
    rows: list[Figures] = json.loads(path.read_text("utf-8"))["rows"]
    return [each for each in rows if LEFT_OUT not in each and "error" not in each]


def _measured(row: Row) -> Figures:
    try:
        return row.measure()
    # All errors are caught, because time on a device is limited and other rows can still be
    # measured.
    except Exception as error:
        shown = "".join(traceback.format_exception(error)[-6:])
        return {"error": f"{type(error).__name__}: {error}", "where": shown}
    finally:
        give_memory_back()


def give_memory_back() -> None:
    """Release the device memory of models in reference cycles, such as models with graphs."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
