"""Objectives that a request must meet to be counted as good."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from antiphon.errors import InvalidArgument
from antiphon_tools.load.content import AUDIO, IMAGE
from antiphon_tools.load.measured import METRICS, Measured


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric and its maximum value."""

    metric: str
    limit: float

    def __str__(self) -> str:
        return f"{self.metric} ≤ {self.limit:g}"

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Parse an objective such as `ttfa=0.5`. Raises `InvalidArgument` if it is malformed."""
        metric, equals, value = text.partition("=")
        try:
            limit = float(value)
        except ValueError:
            limit = math.nan
        if metric not in METRICS or not equals or not 0 <= limit < math.inf:
            known = ", ".join(METRICS)
            raise InvalidArgument(f"--slo {text}: must have the form ttfa=0.5, with one of {known}")
        return cls(metric, limit)

    def met_by(self, request: Measured) -> bool:
        """Return whether a request meets the objective.

        A request that failed doesn't meet it, and neither does one without a value for the metric.
        """
        value = request.metric(self.metric)
        return not request.error and value is not None and value <= self.limit


def default_objectives(outputs: Collection[str]) -> tuple[Objective, ...]:
    """Return the default objectives for a service with these outputs.

    They depend on whether the service generates audio. If it doesn't, they depend on whether it
    generates images or only text.
    """
    if AUDIO in outputs:
        return Objective("ttfa", 1.0), Objective("underrun", 0.1)
    if IMAGE in outputs:
        return (Objective("ttfi", 30.0),)
    return (Objective("ttft", 1.0),)


def good(request: Measured, objectives: Iterable[Objective]) -> bool:
    """Return whether a request was successful and meets every objective."""
    return not request.error and all(each.met_by(request) for each in objectives)


def goodput(requests: Sequence[Measured], objectives: Sequence[Objective]) -> float:
    """Return the fraction of good requests, or 0 if there are no requests."""
    if not requests:
        return 0.0
    return sum(good(each, objectives) for each in requests) / len(requests)
