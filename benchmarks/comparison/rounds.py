"""Runs the alternatives of a benchmark in interleaved rounds.

Each round measures every alternative once. The order is reversed in every other round (A B, B A, A
B, ...), so that changes in the speed of the machine do not favor any of them. Each measurement is
printed when it is complete.
"""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

CPU = "CPU"
Figures = Mapping[str, float]
"""The figures of a measurement by name. Each name ends with the unit, such as "CPU, ms"."""

Measure = Callable[[], Figures | Awaitable[Figures]]
Show = Callable[[str], None]
T = TypeVar("T")


def show_now(line: str) -> None:
    """Print a line and flush the output."""
    print(line, flush=True)


def in_order(sides: Sequence[T], number: int) -> Sequence[T]:
    """Return the sides in the order of round `number`, which is reversed if the number is odd."""
    return sides[::-1] if number % 2 else sides


@dataclass(frozen=True, slots=True)
class Side:
    """An alternative in a comparison.

    `measure` performs the work of one round. If the side is compared, its first figure must be CPU
    time. `against` contains the names of the sides to which this one is compared. A side for which
    it is empty is a baseline.
    """

    name: str
    measure: Measure
    against: Sequence[str] = ()


@dataclass(slots=True)
class Comparison:
    """Runs the sides in interleaved rounds, and stores their figures.

    Raises `ValueError` if a side is compared with one that does not exist.
    """

    sides: Sequence[Side]
    title: str = ""
    show: Show = show_now
    rounds: dict[str, list[Figures]] = field(init=False)

    def __post_init__(self) -> None:
        self.rounds = {side.name: [] for side in self.sides}
        compared = {name for side in self.sides for name in side.against}
        if unknown := compared - self.rounds.keys():
            raise ValueError(f"no side of this comparison is called {', '.join(sorted(unknown))}")

    async def run(self, rounds: int, *, warm_up: int = 1) -> None:
        """Measure a number of rounds, after `warm_up` rounds whose figures are printed but not
        stored.

        Raises `ValueError` if the first figure of a compared side is not CPU time.
        """
        if self.title:
            self.show(f"\n{self.title}")
        for number in range(-warm_up, rounds):
            label = f"round {number + 1} of {rounds}" if number >= 0 else "warm-up"
            for side in in_order(self.sides, number):
                figures = side.measure()
                if inspect.isawaitable(figures):
                    figures = await figures
                self._check(side, figures)
                shown = ", ".join(f"{name}: {_digits(each)}" for name, each in figures.items())
                self.show(f"{label}: {side.name}: {shown}")
                if number >= 0:
                    self.rounds[side.name].append(figures)

    def column(self, side: str, figure: str) -> list[float]:
        """Return a figure of a side for each round."""
        return [each[figure] for each in self.rounds[side]]

    def ratios(self, side: str, base: str, figure: str) -> list[float]:
        """Return the ratio of a figure of two sides for each round."""
        pairs = zip(self.column(side, figure), self.column(base, figure), strict=True)
        return [above / below for above, below in pairs if below]

    def report(self) -> None:
        """Print the median, minimum and maximum of every figure, followed by the ratios of
        rounds.
        """
        heads = list(dict.fromkeys(name for side in self.sides for name in self._names(side)))
        self.show(f"\n| {self.title} | {' | '.join(heads)} |")
        self.show("|---|" + "--:|" * len(heads))
        for side in self.sides:
            known = self._names(side)
            cells = (
                spread(self.column(side.name, head)) if head in known else "" for head in heads
            )
            self.show(f"| {side.name} | {' | '.join(cells)} |")
        for side in self.sides:
            for base in side.against:
                self._report_ratios(side, base)

    def _report_ratios(self, side: Side, base: str) -> None:
        names = (name for name in self._names(side) if name in self.rounds[base][0])
        ratios = {name: self.ratios(side.name, base, name) for name in names}
        shown = ", ".join(f"{name}: {spread(each)}" for name, each in ratios.items() if each)
        self.show(f"{side.name} / {base}: {shown}")

    def _check(self, side: Side, figures: Figures) -> None:
        """Raise `ValueError` if the first figure of a compared side is not CPU time."""
        is_compared = side.against or any(side.name in each.against for each in self.sides)
        if is_compared and not next(iter(figures), "").startswith(CPU):
            raise ValueError(f"the first figure of {side.name} must be its {CPU} time")

    def _names(self, side: Side) -> list[str]:
        return list(self.rounds[side.name][0]) if self.rounds[side.name] else []


def spread(figures: Sequence[float]) -> str:
    """Format the median, and the minimum and maximum in parentheses."""
    middle, least, most = statistics.median(figures), min(figures), max(figures)
    return f"{_digits(middle)} ({_digits(least)} to {_digits(most)})"


def _digits(figure: float) -> str:
    """Format a number with at least three digits and without an exponent."""
    size = abs(figure)
    if size >= 100 or not size:
        return f"{figure:.0f}"
    return f"{figure:.{1 if size >= 10 else 2 if size >= 0.1 else 4}f}"
