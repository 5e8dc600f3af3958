"""Creates plots as SVG text without scripts, fonts or external files.

The colors are defined in the style sheet of the page, in which `.s0` to `.s5` are series, so that
plots follow the reader's light or dark mode.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Point = tuple[float, float]

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 40
MAX_POINTS = 600
MAX_DOTS = 4000
TICKS = 5
COLOURS = 6


@dataclass(frozen=True, slots=True)
class Series:
    """The points of a series, drawn as a line, as steps or as dots. `colour` is the color's
    index.
    """

    name: str
    points: Sequence[Point]
    colour: int = 0
    kind: str = "line"


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis and its label. It extends to the largest value, or to `at_least` if that is
    larger.
    """

    label: str
    at_least: float = 0.0


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps values from 0 to `top` to pixels."""

    top: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * value / self.top


def plot(
    x: Axis,
    y: Axis,
    series: Iterable[Series],
    *,
    limits: Sequence[tuple[str, float]] = (),
    uncounted: Sequence[tuple[float, float]] = (),
) -> str:
    """Return an SVG in which both axes start at 0.

    `limits` contains the name and the y value of horizontal lines. `uncounted` contains ranges of x
    to shade.
    """
    drawn = [each for each in series if each.points]
    xs = [point[0] for each in drawn for point in each.points]
    ys = [point[1] for each in drawn for point in each.points] + [value for _, value in limits]
    across = _Scale(_top(xs, x.at_least), LEFT, WIDTH - RIGHT)
    up = _Scale(_top(ys, y.at_least), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_text(y.label)}">',
        *(_shade(across(start), across(min(end, across.top)), up) for start, end in uncounted),
        *_grid(across, up),
        *(_limit(name, value, up) for name, value in limits),
        *(_draw(each, across, up) for each in drawn),
        f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 6}"'
        f' text-anchor="middle">{_text(x.label)}</text>',
        f'<text class="label" transform="translate(13 {(TOP + HEIGHT - BOTTOM) / 2:.0f})'
        f' rotate(-90)" text-anchor="middle">{_text(y.label)}</text>',
        "</svg>",
    ]
    return "".join(parts)


def cumulative(values: Iterable[float]) -> list[Point]:
    """Return the cumulative distribution as points (value, fraction of values up to this value)."""
    ascending = sorted(values)
    return [(value, (rank + 1) / len(ascending)) for rank, value in enumerate(ascending)]


def thinned(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Reduce the number of points to at most `most`.

    The highest point of each interval is kept, so that no peak is lost.
    """
    if len(points) <= most:
        return points
    stretch = math.ceil(len(points) / most)
    return [
        max(points[start : start + stretch], key=lambda point: point[1])
        for start in range(0, len(points), stretch)
    ]


def ticks(top: float) -> list[float]:
    """Return about `TICKS` round numbers from 0 to `top`."""
    rough = top / TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(size * unit for size in (1, 2, 2.5, 5, 10) if size * unit >= rough * 0.999)
    return [step * index for index in range(int(top / step * 1.001) + 1)]


def _top(values: Sequence[float], at_least: float) -> float:
    return max([*values, at_least], default=0.0) * 1.05 or 1.0


def _grid(across: _Scale, up: _Scale) -> Iterable[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for value in ticks(up.top):
        y = up(value)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>'
    for value in ticks(across.top):
        x = across(value)
        yield f'<path class="tick" d="M{x:.1f} {bottom}v4"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{value:.4g}</text>'
    yield f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>'


def _shade(left: float, right: float, up: _Scale) -> str:
    width, height = max(right - left, 0.0), up.start - up.end
    return (
        f'<rect class="shade" x="{left:.1f}" y="{up.end}" width="{width:.1f}" height="{height}"/>'
    )


def _limit(name: str, value: float, up: _Scale) -> str:
    y, right = up(value), WIDTH - RIGHT
    return (
        f'<path class="limit" d="M{LEFT} {y:.1f}H{right}"/>'
        f'<text class="limit-name" x="{right - 4}" y="{y + 12:.1f}" text-anchor="end">'
        f"{_text(name)}</text>"
    )


def _draw(series: Series, across: _Scale, up: _Scale) -> str:
    points = thinned(series.points, MAX_DOTS if series.kind == "dots" else MAX_POINTS)
    places = [(across(x), up(y)) for x, y in points]
    colour = f"s{series.colour % COLOURS}"
    name = f"<title>{_text(series.name)}</title>"
    if series.kind == "dots":
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places)
        return f'<g class="dots {colour}">{name}{dots}</g>'
    (x, y), *rest = places
    path = f"M{x:.1f} {y:.1f}"
    for x, y in rest:
        path += f"H{x:.1f}V{y:.1f}" if series.kind == "steps" else f"L{x:.1f} {y:.1f}"
    return f'<path class="line {colour}" d="{path}">{name}</path>'


def _text(text: str) -> str:
    return html.escape(text, quote=True)
