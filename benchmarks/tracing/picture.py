"""Draws a trace: lines of JSON, as `antiphon_testkit.trace_collector` prints them, to an SVG.

`python -m benchmarks.tracing.picture < spans.jsonl > trace.svg`; of several traces, the last.
"""

from __future__ import annotations

import json
import sys
from html import escape
from typing import Any

WIDTH, ROW, LEFT, BAR = 960, 22, 250, 14
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2")


def rows(spans: list[dict[str, Any]], parent: str, depth: int = 0) -> list[tuple[int, Any]]:
    """Spans below one, in the order of their beginnings, each followed by its own."""
    found: list[tuple[int, Any]] = []
    for span in sorted(spans, key=lambda each: each["start_ns"]):
        if span["parent"] == parent:
            found += [(depth, span), *rows(spans, span["span"], depth + 1)]
    return found


def drawn(spans: list[dict[str, Any]]) -> str:
    """The picture of one trace."""
    ids = {span["span"] for span in spans}
    (root,) = [span for span in spans if span["parent"] not in ids]
    lines = rows(spans, root["parent"])
    begun, lasted = root["start_ns"], root["end_ns"] - root["start_ns"]
    services = list(dict.fromkeys(span["service"] for _, span in lines))
    height = ROW * (len(lines) + 2)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    scale = (WIDTH - LEFT - 80) / lasted
    for number, (depth, span) in enumerate(lines):
        y = ROW * number + 6
        x = LEFT + (span["start_ns"] - begun) * scale
        wide = max(1.0, (span["end_ns"] - span["start_ns"]) * scale)
        colour = COLOURS[services.index(span["service"]) % len(COLOURS)]
        took = (span["end_ns"] - span["start_ns"]) / 1e6
        out += [
            f'<text x="{8 + 14 * depth}" y="{y + 11}">{escape(span["name"])}</text>',
            f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{BAR}" fill="{colour}"/>',
            f'<text x="{x + wide + 4:.1f}" y="{y + 11}" fill="#555">{took:.1f} ms</text>',
        ]
    for number, service in enumerate(services):
        x, y = 8 + 160 * number, height - ROW
        colour = COLOURS[number % len(COLOURS)]
        out.append(f'<rect x="{x}" y="{y}" width="{BAR}" height="{BAR}" fill="{colour}"/>')
        out.append(f'<text x="{x + 20}" y="{y + 11}">{escape(service)}</text>')
    return "\n".join([*out, "</svg>", ""])


def main() -> None:
    """See the head of this file."""
    spans = [json.loads(line) for line in sys.stdin if line.startswith("{")]
    trace = spans[-1]["trace"]
    sys.stdout.write(drawn([span for span in spans if span["trace"] == trace]))


if __name__ == "__main__":
    main()
