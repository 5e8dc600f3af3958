"""docs/metrics.md names every series there is, with what it is, its labels and its meaning."""

from __future__ import annotations

import re
from pathlib import Path

from tests.all_series import Series, all_series

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(antiphon_\w+)` \| (\w+) \|([^|]*)\| ([^|]+) \|$")


async def test_reference_has_every_series_once_as_it_is() -> None:
    told: dict[str, Series] = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `antiphon_"):
            row = ROW.match(line)
            assert row, f"not a row of a series: {line}"
            name, kind, labels, meaning = row.groups()
            assert name not in told
            assert meaning.strip()
            told[name] = Series(kind, frozenset(re.findall(r"`(\w+)`", labels)))
    assert len(told) > 50
    assert told == await all_series()
