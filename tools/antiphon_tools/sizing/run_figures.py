"""Figures of a load-test result that sizing requires."""

from __future__ import annotations

from typing import Any

from antiphon.errors import InvalidArgument
from antiphon_tools.load.result import EdgeTotals, Result, StageSummary

_TIMES = ("first_input_s", "first_output_s", "busy_s")


def check_answered(run: Result) -> None:
    """Raise `InvalidArgument` if no request was successful, because such a run has no times."""
    if run.requests.succeeded < 1 or run.requests_per_s <= 0:
        raise InvalidArgument(
            f"--run: requests.succeeded: no request of {_words(run)} was answered; check its "
            "errors, and measure again",
            field="requests.succeeded",
        )


def of_stage(run: Result, role: str) -> StageSummary:
    """Return the figures of a stage. Raises `InvalidArgument` if the run has none."""
    stage = run.stages.get(role)
    if stage is None or any(name not in stage.times for name in _TIMES):
        raise _missing(run, f"stages.{role}")
    return stage


def of_edge(run: Result, name: str) -> EdgeTotals:
    """Return the totals of an edge. Raises `InvalidArgument` if it carried no messages."""
    edge = run.edges.get(name)
    if edge is None or edge.messages < 1:
        raise _missing(run, f"edges.{name}")
    return edge


def positive(run: Result, field: str, value: Any) -> float:
    """Return a figure that must be positive. Raises `InvalidArgument` if it is not."""
    if not isinstance(value, int | float) or not value > 0:
        raise _missing(run, field)
    return float(value)


def _missing(run: Result, field: str) -> InvalidArgument:
    return InvalidArgument(
        f"--run: {field}: is missing in {_words(run)}; measure again", field=field
    )


def _words(run: Result) -> str:
    sessions, rate = run.settings.get("sessions"), run.settings.get("rate")
    return f"the run of {run.service} with " + (
        f"{sessions} sessions" if sessions else f"{rate} requests a second"
    )
