"""Draws the curve as an SVG. Requires matplotlib, which is only part of a development
installation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from benchmarks.overload.curve import CurvePoint


def draw(points: Sequence[CurvePoint], path: Path, *, capacity: float, limit_s: float) -> None:
    """Draw goodput and time to first audio by load, with one line per gateway."""
    figure = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasSVG(figure)
    goodput, latency = figure.subplots(2, sharex=True)
    for arm in sorted({each.arm for each in points}):
        own = sorted((each for each in points if each.arm == arm), key=lambda each: each.load)
        loads = [each.load for each in own]
        goodput.plot(loads, [each.good_per_s for each in own], marker="o", label=arm)
        late = [(each.load, each.first_audio_p99_s) for each in own if each.first_audio_p99_s]
        latency.plot(*zip(*late, strict=True), marker="o", label=arm)
    goodput.axhline(capacity, color="grey", linestyle=":", label="capacity")
    goodput.set(ylabel="good answers a second", ylim=(0, None))
    latency.axhline(limit_s, color="grey", linestyle=":", label="what is good")
    latency.set(ylabel="first audio p99, s", xlabel="requests, times the capacity", yscale="log")
    for axes in (goodput, latency):
        axes.grid(alpha=0.3)
        axes.legend()
    with rc_context({"svg.hashsalt": "antiphon"}):
        figure.savefig(path, metadata={"Date": None})
