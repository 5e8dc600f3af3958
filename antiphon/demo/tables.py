"""The demonstration's tables, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from antiphon.client.events import StageReport
from antiphon.demo.measure import Measured

BAR_WIDTH = 48
WAITING, WORKING = "·", "█"


def results_table(results: Mapping[str, Measured]) -> Iterator[str]:
    """One line per request: when it began to answer, how much, how fast."""
    rows: list[tuple[str, ...]] = [
        ("request", "first text", "first audio", "audio", "total", "RTF", "ended by")
    ]
    for name, each in results.items():
        rows.append(
            (
                name,
                _seconds(each.first_text_s),
                _seconds(each.first_audio_s),
                _seconds(each.reply.audio_s or None),
                _seconds(each.last_event_s),
                "-" if each.real_time_factor is None else f"{each.real_time_factor:.2f}",
                each.reply.finish_reason.value,
            )
        )
    return _aligned(rows)


def timeline(reports: Mapping[str, StageReport], roles: Sequence[str]) -> Iterator[str]:
    """One bar per stage: dots wait for the first output, blocks produce output.

    Times are seconds since the stage took the request on; all bars have one scale.
    """
    taking_part = [role for role in roles if role in reports]
    end_s = max((reports[role].last_output_s for role in taking_part), default=0.0)
    rows: list[tuple[str, ...]] = [
        ("stage", "first in", "first out", "last out", "busy", f"0 to {end_s:.2f} s")
    ]
    for role in taking_part:
        report = reports[role]
        times = (report.first_input_s, report.first_output_s, report.last_output_s, report.busy_s)
        rows.append((role, *(f"{time_s:.2f} s" for time_s in times), _bar(report, end_s)))
    return _aligned(rows)


def _bar(report: StageReport, end_s: float) -> str:
    """The stage's time from its first input to its last output."""
    if end_s <= 0:
        return ""
    first_in, first_out, last_out = (
        round(BAR_WIDTH * time_s / end_s)
        for time_s in (report.first_input_s, report.first_output_s, report.last_output_s)
    )
    return " " * first_in + WAITING * (first_out - first_in) + WORKING * (last_out - first_out)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as their widest cell; the first and the last are flush left."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        cells = [f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)]
        cells[0] = f"{row[0]:<{widths[0]}}"
        cells[-1] = row[-1]
        yield "  " + "  ".join(cells).rstrip()
