"""Formats numbers for display."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Format a duration in seconds, or in milliseconds if it is short."""
    return f"{value * 1000:.1f} ms" if abs(value) < 1 else f"{value:.2f} s"


def ratio(value: float) -> str:
    """Format a plain number."""
    return f"{value:.3g}"


def percent(value: float) -> str:
    """Format a fraction as a percentage. 99.96% is not rounded to 100%."""
    text = f"{value * 100:.1f}"
    return "99.9 %" if text == "100.0" and value < 1 else f"{text} %"


def size(value: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def count(value: float) -> str:
    """Format a count."""
    return f"{value:,.0f}"


def metric(name: str, value: float) -> str:
    """Format a value of one of the metrics in `measured.METRICS`."""
    return ratio(value) if name == "rtf" else seconds(value)
