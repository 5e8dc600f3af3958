"""Compares a load-test run with a simulation of the same calls."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from antiphon.errors import InvalidArgument
from antiphon_tools.launcher.plan import GATEWAY
from antiphon_tools.load.result import RequestPoint, Result
from antiphon_tools.load.statistics import percentile
from antiphon_tools.sizing.measured import MeasuredPipeline
from antiphon_tools.sizing.offered import Lengths, OfferedCall, OfferedLoad
from antiphon_tools.sizing.plan import simulated
from antiphon_tools.sizing.report import table
from antiphon_tools.sizing.run_figures import check_answered, positive

PERCENTILES = (50.0, 90.0, 95.0)
LENGTHS_CV = 0.15
"""The assumed variation in reply length. It is small because all replies repeat the same number of
words.
"""
SAME_MOMENT_S = 1e-3
BLOCK = 8
"""The number of consecutive calls in a block of the bootstrap. Calls are grouped because they
affect each other.
"""
DRAWS = 1000
WITHIN = (5.0, 95.0)
PHASES = 8
"""The number of times that a run is simulated. In each simulation, calls arrive at different times
relative to the engine's steps.
"""


ComparedCall = tuple[float, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The measured and predicted time to first audio in seconds, for all runs with the same rate.

    `measured` and `predicted` contain percentiles. `calls` contains the measured time and all
    predictions for each answered call, in order. `interval` is the range that would contain nine
    out of ten p95 errors for other calls of the same kind.
    """

    rate: float
    requests: int
    succeeded: int
    calls: tuple[ComparedCall, ...]
    measured: Mapping[float, float]
    predicted: Mapping[float, float]
    interval: tuple[float, float]

    def error(self, percent: float) -> float:
        """Return the relative error of the prediction. It is positive if the prediction is too
        high.
        """
        return self.predicted[percent] / self.measured[percent] - 1


def compared(
    measured: MeasuredPipeline,
    run: Result,
    replicas: Mapping[str, int],
    tokens_per_s: float,
    phases: int = PHASES,
) -> Comparison:
    """Simulate a run's calls with the same lengths.

    A call arrives at a random point within an engine step, which affects its time to first audio.
    For this reason, only the first simulation uses the original arrival times. In the others, each
    call is delayed by up to the duration of the longest step. Raises `InvalidArgument` if the run
    has no rate or too few answers.
    """
    load = offered_by(run, tokens_per_s)
    calls = known_calls(load, run.points, measured.frame_s)
    source = random.Random(f"phases {load.seed}")
    step_s = max(stage.step_curve(1) for stage in measured.stages.values())
    predicted: dict[int, list[float]] = {call.number: [] for call in calls}
    for phase in range(phases):
        most_s = step_s if phase else 0.0
        moved = [replace(call, at_s=call.at_s + source.random() * most_s) for call in calls]
        for call in simulated(measured, load, replicas, "steps", known=moved).calls:
            if call.first_audio_s is not None:
                predicted[call.offered.number].append(call.first_audio_s)
    numbers = {call.at_s: call.number for call in calls}
    compared_calls = [
        (point.ttfa, tuple(predicted[numbers[at_s]]))
        for at_s, point in _by_moment(run.points, numbers).items()
        if point.ttfa is not None and not point.error
    ]
    return _comparison(load.rate, run.requests.due, run.requests.succeeded, compared_calls)


def pooled(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Combine the calls of all runs that have the same rate."""
    rates: dict[float, list[Comparison]] = {}
    for each in comparisons:
        rates.setdefault(each.rate, []).append(each)
    return [
        _comparison(
            rate,
            sum(each.requests for each in runs),
            sum(each.succeeded for each in runs),
            [call for each in runs for call in each.calls],
        )
        for rate, runs in sorted(rates.items())
    ]


def known_calls(
    load: OfferedLoad, points: Iterable[RequestPoint], frame_s: float
) -> list[OfferedCall]:
    """Return the load's calls with the lengths that were measured in a run.

    Calls that were not measured keep their sampled lengths.
    """
    calls = {call.at_s: call for call in load.calls(frame_s)}
    for at_s, point in _by_moment(points, calls).items():
        if point.audio_s > 0:
            calls[at_s] = replace(
                calls[at_s],
                tokens=max(1, round(point.audio_s * load.tokens_per_s)),
                frames=max(1, round(point.audio_s / frame_s)),
            )
    return list(calls.values())


def offered_by(run: Result, tokens_per_s: float) -> OfferedLoad:
    """Return the load that a run has offered. The same seed results in the same Poisson
    arrivals.
    """
    settings = run.settings
    if run.service != GATEWAY or not settings.get("rate"):
        raise InvalidArgument(
            "--run: must be a result of python -m antiphon_tools.load gateway --rate R --json "
            f"FILE, but is one of {run.service} with {settings.get('sessions')} sessions"
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
    """Return the mean duration of audio per answer, in seconds.

    Raises `InvalidArgument` if the run has no audio.
    """
    check_answered(run)
    return positive(run, "audio_s_per_s", run.audio_s_per_s) / run.requests_per_s


def comparison_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """Return one line per comparison."""
    rows = []
    for each in comparisons:
        cells = [f"{each.rate:g}", f"{each.succeeded} of {each.requests}"]
        for percent in PERCENTILES:
            cells.append(f"{each.measured[percent] * 1000:.0f}")
            cells.append(f"{each.predicted[percent] * 1000:.0f} ({each.error(percent):+.0%})")
        low, high = each.interval
        rows.append([*cells, f"{low:+.0%} to {high:+.0%}"])
    head = ["calls a second", "answered"]
    for percent in PERCENTILES:
        head += [f"p{percent:g} ms", "predicted"]
    return table([*head, "p95 in 9 of 10"], rows)


def _comparison(
    rate: float, requests: int, succeeded: int, calls: Sequence[ComparedCall]
) -> Comparison:
    if len(calls) < 20:
        raise InvalidArgument(
            f"--run: only has {len(calls)} answers with audio; a p95 requires at least 20 "
            "(--seconds)"
        )
    seen, predicted = _ascending(calls)
    return Comparison(
        rate=rate,
        requests=requests,
        succeeded=succeeded,
        calls=tuple(calls),
        measured={each: percentile(seen, each) for each in PERCENTILES},
        predicted={each: percentile(predicted, each) for each in PERCENTILES},
        interval=_interval(calls),
    )


def _interval(calls: Sequence[ComparedCall]) -> tuple[float, float]:
    """Return the interval of p95 errors, computed by a bootstrap with blocks of consecutive
    calls.
    """
    blocks = [calls[start : start + BLOCK] for start in range(0, len(calls), BLOCK)]
    source, errors = random.Random(0), []
    for _ in range(DRAWS):
        drawn = [call for block in source.choices(blocks, k=len(blocks)) for call in block]
        seen, predicted = _ascending(drawn)
        errors.append(percentile(predicted, 95) / percentile(seen, 95) - 1)
    errors.sort()
    return percentile(errors, WITHIN[0]), percentile(errors, WITHIN[1])


def _ascending(calls: Sequence[ComparedCall]) -> tuple[list[float], list[float]]:
    """Return the sorted measured values and the sorted predictions."""
    return sorted(was for was, _ in calls), sorted(each for _, made in calls for each in made)


def _by_moment(
    points: Iterable[RequestPoint], moments: Iterable[float]
) -> dict[float, RequestPoint]:
    """Return a run's requests by the arrival times of the corresponding calls."""
    known = {round(moment / SAME_MOMENT_S): moment for moment in moments}
    found = {}
    for point in points:
        place = round(point.at_s / SAME_MOMENT_S)
        at_s = next((known[each] for each in (place, place - 1, place + 1) if each in known), None)
        if at_s is not None:
            found[at_s] = point
    return found
