"""Rows of figures within a time budget: each is printed and saved when it has been measured.

A row is one line of JSON. Its first figure is the CPU time of this process and its descendants.
Rows that the budget has no time for are left out, with the command that measures them.
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
"""The figure that says whether a row shows what it must; rows that only measure have none."""
LEFT_OUT, RUN = "left_out", "run"
CUT = 3
"""Exit status of a call whose last row did not end in time."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. It does not start when less than `least_s` of the budget remains.

    Later rows need what a `setup` row makes, so a call that measures some rows runs it too.
    """

    name: str
    measure: Callable[[], Figures]
    least_s: float = 0.0
    setup: bool = False


def mirrored(rows: Sequence[Row]) -> list[Row]:
    """Rows to compare, then the same rows in reverse order (A B B A).

    A device that changes its speed during the run then favors none of them. The second row of a
    pair is named "..., again".
    """
    if len(rows) < 2:
        return list(rows)
    return [*rows, *again(rows)]


def again(rows: Sequence[Row]) -> list[Row]:
    """The second half of `mirrored`."""
    return [replace(row, name=f"{row.name}, again") for row in reversed(rows)]


class Report:
    """The rows of one call, in a JSON file that is complete after each of them.

    `again` is the command that measures the rows that were left out. `measured` are rows of an
    earlier call: they stay in the file and are not measured again.
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
        """Seconds that remain of the budget."""
        return self._ends_at - self._clock()

    @property
    def failed(self) -> list[str]:
        """Names of the rows that raised, or whose figures are not as they must be."""
        return [
            each["name"] for each in self.rows if "error" in each or each.get(HOLDS, True) is False
        ]

    @property
    def left_out(self) -> list[str]:
        """Names of the rows that there was no time for."""
        return [each["name"] for each in self.rows if LEFT_OUT in each]

    def run(self, rows: Sequence[Row]) -> None:
        """Measure one after the other. What a row raises is its result; the others go on."""
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
        """End this process that long after the budget, whatever the running row waits for.

        The file then says which row did not end, and the exit status is `CUT`.
        """
        # A row that holds the interpreter's lock stops the timer, but not this.
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
            # It may have ended since it was listed.
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
            # A run that is cut, or read while it goes on, leaves a complete file.
            written = self._path.with_name(f"{self._path.name}.part")
            content = {**self._facts, "rows": self.rows}
            written.write_text(json.dumps(content, indent=1, default=str) + "\n", "utf-8")
            os.replace(written, self._path)


def measured_rows(path: Path) -> list[Figures]:
    """Rows of an earlier call's file, without those that were left out or failed."""
    if not path.exists():
        return []
    rows: list[Figures] = json.loads(path.read_text("utf-8"))["rows"]
    return [each for each in rows if LEFT_OUT not in each and "error" not in each]


def _measured(row: Row) -> Figures:
    try:
        return row.measure()
    # Any error: the time on a device is short, and other rows can be measured.
    except Exception as error:
        shown = "".join(traceback.format_exception(error)[-6:])
        return {"error": f"{type(error).__name__}: {error}", "where": shown}
    finally:
        give_memory_back()


def give_memory_back() -> None:
    """Free the device memory of models in reference cycles; models with graphs are in one."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
