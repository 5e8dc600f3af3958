"""Load tests of MiMo-Audio: the gateway by either endpoint, and each stage alone, at a rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon_tools.launcher.launcher import Running
from tests.equality.read_aloud import check_load

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest.mark.parametrize(
    ("service", "http"),
    [("gateway", True), ("gateway", False), ("talker", False), ("code2wav", False)],
)
@pytest.mark.parametrize("pace", [["--sessions", "2"], ["--rate", "4"]], ids=["closed", "rate"])
async def test_every_service_is_loaded(
    service: str,
    http: bool,
    pace: list[str],
    speaking: dict[str, Running],
    tmp_path: Path,
) -> None:
    await check_load(speaking["widths"], service, [], tmp_path, http=http, pace=pace)
