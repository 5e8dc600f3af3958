"""A run of the load test beside what the simulation makes of the same calls. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from antiphon.errors import InvalidArgument
from tools.launcher.plan import GATEWAY
from tools.load.result import Result
from tools.load.statistics import percentile
from tools.sizing.measured import MeasuredPipeline
from tools.sizing.offered import Lengths, OfferedLoad
from tools.sizing.plan import simulated
from tools.sizing.report import table
from tools.sizing.run_figures import check_answered, positive

PERCENTILES = (50.0, 90.0, 95.0)
LENGTHS_CV = 0.15
"""Replies that repeat as many words as each other differ so little in length."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """First audio of a run by percentile, seconds, as it was and as it was predicted."""

    rate: float
    requests: int
    succeeded: int
    measured: Mapping[float, float]
    predicted: Mapping[float, float]

    def error(self, percent: float) -> float:
        """By how much the prediction is above what was measured, as a part of that."""
        return self.predicted[percent] / self.measured[percent] - 1


def compared(
    measured: MeasuredPipeline, run: Result, replicas: Mapping[str, int], tokens_per_s: float
) -> Comparison:
    """Simulate the calls of a run: the same moments, lengths as long on average.

    Raises `InvalidArgument` for a run that has no rate, or too few answers.
    """
    load = offered_by(run, tokens_per_s)
    outcome = simulated(measured, load, replicas, "steps")
    seen = sorted(point.ttfa for point in run.points if point.ttfa is not None and not point.error)
    if len(seen) < 20:
        raise InvalidArgument(
            f"--run: only {len(seen)} answers with audio; a p95 takes 20 at least (--seconds)"
        )
    predicted = {each: outcome.first_audio(each) or 0.0 for each in PERCENTILES}
    return Comparison(
        rate=load.rate,
        requests=run.requests.due,
        succeeded=run.requests.succeeded,
        measured={each: percentile(seen, each) for each in PERCENTILES},
        predicted=predicted,
    )


def offered_by(run: Result, tokens_per_s: float) -> OfferedLoad:
    """The load that a run has offered: arrivals are Poisson by the same seed."""
    settings = run.settings
    if run.service != GATEWAY or not settings.get("rate"):
        raise InvalidArgument(
            "--run: must be of python -m tools.load gateway --rate R --json FILE; this is of "
            f"{run.service} with {settings.get('sessions')} sessions"
        )
    return OfferedLoad(
        rate=float(settings["rate"]),
        seconds=float(settings["seconds"]),
        warm_up_s=run.warm_up_s,
        speech_s=Lengths("lognormal", speech_s(run), LENGTHS_CV),
        prompt_rows=Lengths("fixed", float(settings.get("prompt_length") or 1)),
        tokens_per_s=tokens_per_s,
        seed=int(settings["seed"]),
    )


def speech_s(run: Result) -> float:
    """Seconds of audio of a mean answer. Raises `InvalidArgument` for a run without any."""
    check_answered(run)
    return positive(run, "audio_s_per_s", run.audio_s_per_s) / run.requests_per_s


def comparison_lines(comparisons: list[Comparison]) -> list[str]:
    """All of them, a line each."""
    rows = []
    for each in comparisons:
        cells = [f"{each.rate:g}", f"{each.succeeded} of {each.requests}"]
        for percent in PERCENTILES:
            cells.append(f"{each.measured[percent] * 1000:.0f}")
            cells.append(f"{each.predicted[percent] * 1000:.0f} ({each.error(percent):+.0%})")
        rows.append(cells)
    head = ["calls a second", "answered"]
    for percent in PERCENTILES:
        head += [f"p{percent:g} ms", "predicted"]
    return table(head, rows)
