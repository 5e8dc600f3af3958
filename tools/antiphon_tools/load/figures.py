"""How numbers are written for people. Pure."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Seconds, as milliseconds where that reads better."""
    return f"{value * 1000:.1f} ms" if abs(value) < 1 else f"{value:.2f} s"


def ratio(value: float) -> str:
    """A plain number."""
    return f"{value:.3g}"


def percent(value: float) -> str:
    """A part of one as percent; 99.96 % does not become 100 %."""
    text = f"{value * 100:.1f}"
    return "99.9 %" if text == "100.0" and value < 1 else f"{text} %"


def size(value: float) -> str:
    """Bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def count(value: float) -> str:
    """A number of things."""
    return f"{value:,.0f}"


def metric(name: str, value: float) -> str:
    """A value of one of `measured.METRICS`."""
    return ratio(value) if name == "rtf" else seconds(value)
