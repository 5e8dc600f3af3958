"""Renders a result as a self-contained HTML page, without scripts or external resources.

Every figure is a `<data value="...">` element whose `data-path` is its path in the JSON.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Any

from antiphon_tools.load import figures
from antiphon_tools.load.charts import charts
from antiphon_tools.load.result import Result
from antiphon_tools.load.tables import DASH, Cell, Table, capacity_in_words, tables

STYLE = """
:root { color-scheme: light dark; --ink: #1c2230; --dim: #667; --line: #d9dde6; --paper: #fff;
  --card: #f6f7fa; --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #cc79a7; --s4: #b58900;
  --s5: #56b4e9; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaf0; --dim: #9aa3b5; --line: #333b4a;
  --paper: #14171e; --card: #1c212b; --s0: #4aa8e8; --s1: #ff8a3d; --s2: #2cc79a; --s3: #e59cc4;
  --s4: #e0b93b; --s5: #8fd0f5; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1340px; margin: 0 auto; padding: 24px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 28px 0 8px; }
p.dim, p.note, footer { color: var(--dim); margin: 0 0 12px; } p.note { font-size: 13px; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 20px 0; }
.tile { background: var(--card); border-radius: 8px; padding: 12px 18px; min-width: 108px; }
.tile b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.tile span { color: var(--dim); font-size: 13px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 16px; }
figure { margin: 0; background: var(--card); border-radius: 8px; padding: 12px; }
figcaption { font-weight: 600; margin-bottom: 4px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 13px; color: var(--dim); }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px;
  margin-right: 5px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 14px 3px 0; text-align: right; border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 500; } td:first-child, th:first-child { text-align: left; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: var(--dim); }
svg .grid { stroke: var(--line); } svg .axis, svg .tick { stroke: var(--dim); fill: none; }
svg .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
svg .shade { fill: var(--line); fill-opacity: .45; }
svg .limit { stroke: var(--dim); stroke-dasharray: 5 4; } svg .dots { fill-opacity: .65; }
""" + "".join(
    f"svg .line.s{n} {{ stroke: var(--s{n}); }} svg .dots.s{n} {{ fill: var(--s{n}); }} "
    f"i.s{n} {{ background: var(--s{n}); }}\n"
    for n in range(6)
)


def page(result: Result) -> str:
    """Return the complete page."""
    name = f"antiphon load test: {result.service}"
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(name)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{_text(name)}</h1>",
            f'<p class="dim">{_text(_in_words(result))}</p>',
            *_tiles(result),
            f'<div class="plots">{"".join(charts(result))}</div>',
            *(_table(each) for each in tables(result)),
            _settings(result.settings),
            "</body></html>\n",
        )
    )


def _in_words(result: Result) -> str:
    words = f"{result.started_at}, {figures.seconds(result.measured_s)} measured"
    words += ", interrupted" if result.interrupted else ""
    return f"{words}. {capacity_in_words(result.capacity)}" if result.capacity else f"{words}."


def _tiles(result: Result) -> Iterator[str]:
    chosen: list[tuple[str, Cell]] = [
        ("goodput", Cell(figures.percent(result.goodput), "goodput", result.goodput)),
        (
            "requests a second",
            Cell(figures.ratio(result.requests_per_s), "requests_per_s", result.requests_per_s),
        ),
    ]
    for name in ("ttft", "ttfa", "ttfi", "rtf", "underrun"):
        each = result.metrics.get(name)
        if each is not None:
            for part, value in (("p50", each.p50), ("p99", each.p99)):
                if value is None:
                    chosen.append((f"{name} {part}, n = {each.count}", Cell(DASH)))
                    continue
                cell = Cell(figures.metric(name, value), f"metrics/{name}/{part}", value)
                chosen.append((f"{name} {part}", cell))
    tiles = (
        f'<div class="tile"><b>{_data(cell)}</b><span>{name}</span></div>' for name, cell in chosen
    )
    yield f'<div class="tiles">{"".join(tiles)}</div>'


def _table(table: Table) -> str:
    heads = "".join(f"<th>{_text(each)}</th>" for each in table.headings)
    rows = "".join(
        f"<tr>{''.join(f'<td>{_data(cell)}</td>' for cell in row)}</tr>" for row in table.rows
    )
    head = f"<tr>{heads}</tr>" if any(table.headings) else ""
    note = f'<p class="note">{_text(table.note)}</p>' if table.note else ""
    return f'<h2>{_text(table.title)}</h2>{note}<div class="wide"><table>{head}{rows}</table></div>'


def _data(cell: Cell) -> str:
    text = _text(cell.text)
    if not cell.path:
        return text
    return f'<data data-path="{_text(cell.path)}" value="{cell.value!r}">{text}</data>'


def _settings(settings: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{_text(name)}</td><td>{_text(str(value))}</td></tr>"
        for name, value in settings.items()
    )
    return f'<h2>Settings</h2><div class="wide"><table>{rows}</table></div>'


def _text(text: str) -> str:
    return html.escape(text, quote=True)
