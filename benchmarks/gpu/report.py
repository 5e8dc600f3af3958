"""Rows of figures, each written down as soon as it is there, within a time budget.

The first figure of a row is the CPU time of this process and of those that it started.
"""

from __future__ import annotations

import gc
import json
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.comparison.processes import tree_cpu_s

Figures = dict[str, Any]
HOLDS = "holds"
"""The figure that says whether what a row must show is so; rows that only measure have none."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. It is not begun when less than `least_s` of the budget is left."""

    name: str
    measure: Callable[[], Figures]
    least_s: float = 0.0


def mirrored(rows: Sequence[Row]) -> list[Row]:
    """Rows that are compared with each other, then all again in reversed order (A B B A).

    A device that gets slower or faster meanwhile favors none of them. The second of two rows of the
    same measurement is called "..., again".
    """
    if len(rows) < 2:
        return list(rows)
    return [*rows, *(replace(row, name=f"{row.name}, again") for row in reversed(rows))]


class Report:
    """The rows of one run, in a JSON file that is whole after each of them."""

    def __init__(
        self,
        facts: Mapping[str, Any],
        path: Path | None,
        budget_s: float,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = tree_cpu_s,
    ) -> None:
        self._facts, self._path, self._clock = dict(facts), path, clock
        self._cpu_clock = cpu_clock
        self._ends_at = clock() + budget_s
        self._budget_s = budget_s
        self.rows: list[dict[str, Any]] = []

    @property
    def left_s(self) -> float:
        """What is left of the budget."""
        return self._ends_at - self._clock()

    @property
    def failed(self) -> list[str]:
        """Names of the rows that raised, or whose figures are not as they must be."""
        return [
            each["name"] for each in self.rows if "error" in each or each.get(HOLDS, True) is False
        ]

    @property
    def skipped(self) -> list[str]:
        """Names of the rows for which no time was left."""
        return [each["name"] for each in self.rows if "skipped" in each]

    def run(self, rows: Sequence[Row]) -> None:
        """Measure one after the other. What a row raises is its result; the others go on."""
        for row in rows:
            started = self._clock()
            if self.left_s <= row.least_s:
                needs = f", and it may need {row.least_s:.0f} s" if row.least_s else ""
                left = max(self.left_s, 0.0)
                figures: Figures = {
                    "skipped": f"{left:.0f} s of {self._budget_s:.0f} s are left{needs}"
                }
            else:
                before_s = self._cpu_clock()
                figures = _measured(row)
                figures = {"cpu_s": round(self._cpu_clock() - before_s, 2), **figures}
            self._add({"name": row.name, **figures, "took_s": round(self._clock() - started, 2)})

    def _add(self, figures: Figures) -> None:
        self.rows.append(figures)
        shown = {key: value for key, value in figures.items() if key not in ("name", "where")}
        print(f"{figures['name']}: {json.dumps(shown, default=str)}", flush=True)
        if self._path is not None:
            # Who reads it, or brings it home from a run that was cut, always finds a whole file.
            written = self._path.with_name(f"{self._path.name}.part")
            content = {**self._facts, "rows": self.rows}
            written.write_text(json.dumps(content, indent=1, default=str) + "\n", "utf-8")
            os.replace(written, self._path)


def _measured(row: Row) -> Figures:
    try:
        return row.measure()
    # Whatever it is: the time on a device is short, and other rows can be measured.
    except Exception as error:
        shown = "".join(traceback.format_exception(error)[-6:])
        return {"error": f"{type(error).__name__}: {error}", "where": shown}
    finally:
        give_memory_back()


def give_memory_back() -> None:
    """Free on the device what models left in reference cycles hold, as those with graphs do."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
