"""Converts the result of a load test to a point of the curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.errors import ErrorCode
from antiphon_tools.load.result import RequestPoint, Result

REFUSED = ErrorCode.RESOURCE_EXHAUSTED.value


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The results for one load.

    `first_audio_p99_s` includes all requests that were not rejected. For a request that had no
    audio when the run ended, the time that it had waited is used. If `unanswered` is not 0, the
    percentile is therefore a lower bound.
    """

    arm: str
    load: float
    rate: float
    due: int
    good: float
    good_per_s: float
    refused: int
    unanswered: int
    first_audio_p50_s: float | None
    first_audio_p99_s: float | None
    refusal_p50_s: float | None
    refusal_p99_s: float | None
    gateway_cpu: float
    load_average: str


def curve_point(arm: str, load: float, rate: float, result: Result) -> CurvePoint:
    """Convert the result of a run at `load` times the capacity."""
    refused = [each for each in result.points if each.error.startswith(REFUSED)]
    others = [each for each in result.points if not each.error.startswith(REFUSED)]
    audio_s, refusals_s = [*map(_waited_s, others)], [each.duration for each in refused]
    gateway = result.processes.get("gateway")
    return CurvePoint(
        arm=arm,
        load=load,
        rate=rate,
        due=result.requests.due,
        good=result.goodput,
        good_per_s=result.good_per_s,
        refused=len(refused),
        unanswered=sum(bool(each.error) for each in others),
        first_audio_p50_s=_percentile(audio_s, 0.5),
        first_audio_p99_s=_percentile(audio_s, 0.99),
        refusal_p50_s=_percentile(refusals_s, 0.5),
        refusal_p99_s=_percentile(refusals_s, 0.99),
        gateway_cpu=0.0 if gateway is None else gateway.cpu,
        load_average=str(result.settings.get("load average at end", "")),
    )


def table(points: Sequence[CurvePoint]) -> list[str]:
    """Return the points as a Markdown table."""
    lines = [
        "| gateway | load | requests/s | good/s | good | refused | no answer | first audio p50, s "
        "| p99 | refusal p50, ms | p99 |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for each in sorted(points, key=lambda point: (point.arm, point.load)):
        seconds = (each.first_audio_p50_s, each.first_audio_p99_s)
        refusals = (each.refusal_p50_s, each.refusal_p99_s)
        cells = [
            each.arm,
            f"{each.load:g}",
            f"{each.rate:.2f}",
            f"{each.good_per_s:.2f}",
            f"{each.good:.0%}",
            f"{each.refused} of {each.due}",
            str(each.unanswered),
            *("" if value is None else f"{value:.2f}" for value in seconds),
            *("" if value is None else f"{1e3 * value:.0f}" for value in refusals),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def kept(points: Sequence[CurvePoint], arm: str) -> str:
    """Describe how much of the best goodput remains at the highest load."""
    own = [each for each in points if each.arm == arm]
    most, last = max(each.good_per_s for each in own), max(own, key=lambda each: each.load)
    part = last.good_per_s / most if most else 0.0
    return f"{arm}: at {last.load:g} times the capacity {part:.0%} of the best goodput"


def _waited_s(point: RequestPoint) -> float:
    return point.duration if point.ttfa is None else point.ttfa


def _percentile(values: Sequence[float], part: float) -> float | None:
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]
