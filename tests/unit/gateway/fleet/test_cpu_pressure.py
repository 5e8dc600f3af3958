"""The share of time in which threads waited for a core, from the kernel's file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from antiphon_gateway.fleet import cpu_pressure
from antiphon_gateway.fleet.cpu_pressure import CpuPressure


def test_share_is_what_the_kernel_counts_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, path = [10.0], tmp_path / "cpu"
    monkeypatch.setattr(cpu_pressure, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def stalled(microseconds: int) -> None:
        path.write_text(
            f"some avg10=1.00 avg60=2.00 avg300=3.00 total={microseconds}\n"
            "full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
        )

    pressure = CpuPressure(path)
    stalled(5_000_000)
    assert pressure.share() == 0.0
    now[0] += 0.1
    stalled(5_095_000)
    assert pressure.share() == pytest.approx(0.95)
    pressure.begin()
    now[0] += 0.1
    assert pressure.share() == 0.0
    now[0] += 0.1
    assert pressure.share() == 0.0


@pytest.mark.parametrize("text", [None, "", "nothing of the kind\n"])
def test_share_is_none_where_the_kernel_tells_none(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "cpu"
    if text is not None:
        path.write_text(text)
    pressure = CpuPressure(path)
    assert [pressure.share() for _ in range(2)] == [0.0, 0.0]
