"""Services on a system without Linux's anonymous files, event counters and `/proc`, as macOS is.

Python is without them in every process of the deployment; compiled libraries are not.
"""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
import soundfile

from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.launcher.plan import EMBEDDED_MODEL
from tests.embedded_model import ROOT, spoken_answer
from tests.metrics_page import read_page

WITHOUT = """
import os, sys

for name in dir(os):
    if name.startswith(("memfd_", "MFD_", "eventfd", "EFD_", "pidfd_", "sched_")):
        delattr(os, name)


stat = os.stat


def check(path):
    if not isinstance(path, int) and os.fsdecode(path).startswith("/proc/"):
        raise FileNotFoundError(2, "No such file or directory", path)


def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and arguments[0] is not None:
        check(arguments[0])


def stat_elsewhere(path, **named):
    check(path)
    return stat(path, **named)


os.stat = stat_elsewhere
sys.addaudithook(refuse)
"""

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.asyncio]


async def test_model_speaks_over_grpc_when_linux_calls_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with Launcher(ROOT / EMBEDDED_MODEL, metrics=True) as running:
        text, wav = await asyncio.to_thread(spoken_answer, running.http_url, "Good morning!")
        page = await read_page(running.processes["talker"].metrics_url)
    samples, rate = soundfile.read(io.BytesIO(wav))
    assert text
    assert rate == 24_000
    assert abs(samples).max() > 0.1
    agreed = {each.labels["transport"] for each in page.all("antiphon_link_transport")}
    assert agreed == {"grpc"}
    refused = [each.labels for each in page.all("antiphon_link_refused")]
    assert any("no anonymous files" in each["reason"] for each in refused)
