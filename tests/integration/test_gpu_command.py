"""`make gpu`'s commands on a CPU, at tiny sizes: every row runs, so that on a GPU it does too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu import fidelity
from benchmarks.gpu.__main__ import NO_DEVICE, main
from benchmarks.gpu.fidelity import Answer, Lab
from benchmarks.gpu.loads import WAYS
from benchmarks.gpu.pipeline import RandomStage, pipeline_rows
from benchmarks.gpu.report import Report
from tools.launcher.launcher import Launcher
from tools.launcher.process import ServiceProcess
from tools.warm.launcher import WarmProcess

HERE = Path(__file__).parents[2]
SKIPS = """
import pytest

@pytest.mark.gpu
@pytest.mark.skipif(True, reason="needs a GPU")
def test_by_mark(): ...

@pytest.mark.gpu
def test_by_itself():
    pytest.skip("no peer")

@pytest.mark.gpu
def test_that_runs(): ...

@pytest.mark.skip
def test_of_another_kind(): ...
"""


def rows_of(area: str, directory: Path, device: str = "cpu") -> dict[str, dict[str, Any]]:
    """By name. Nothing failed, and nothing was skipped."""
    path = directory / f"{area}.json"
    status = main([area, "--device", device, "--json", str(path)])
    written = json.loads(path.read_text())
    rows = {each["name"]: each for each in written["rows"]}
    assert status == 0, [each for each in written["rows"] if "error" in each or "holds" in each]
    assert not any("skipped" in each for each in rows.values())
    assert {"torch", "transformers", "python", "device"} <= written.keys()
    return rows


@pytest.mark.parametrize("area", ["require", "fidelity"])
def test_command_says_what_is_missing_when_there_is_no_such_device(
    area: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    assert main([area, "--device", "cuda:99", "--json", str(path)]) == NO_DEVICE
    assert "needs a GPU" in capsys.readouterr().err
    assert not path.exists()


def test_tests_that_need_a_gpu_fail_when_they_would_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_skips.py").write_text(SKIPS, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest"]
    run = subprocess.run(
        [*command, "-c", str(HERE / "pyproject.toml"), "--gpu", "-m", "gpu", str(tmp_path)],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stdout
    # What a mark skips is skipped before it runs.
    assert "1 failed, 1 passed, 1 deselected, 1 error" in run.stdout
    assert "was skipped" in run.stdout


def test_every_engine_is_measured_when_the_device_is_a_cpu(tmp_path: Path) -> None:
    rows = rows_of("engines", tmp_path)
    for engine in ("talker", "code2wav", "thinker"):
        timed = [each for name, each in rows.items() if name.startswith(engine)]
        assert sum(each.get("median_ms", 0.0) > 0.0 for each in timed) >= 4
    trace = rows["talker, a trace"]
    assert trace["operations"] > 100
    assert json.loads(Path(trace["trace"]).read_text())["traceEvents"]


ON_A_GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_A_GPU)])
def test_engines_say_what_the_reference_says_on_every_device(tmp_path: Path, device: str) -> None:
    rows = rows_of("fidelity", tmp_path, device)
    exact = [each for name, each in rows.items() if name.startswith("float32")]
    assert len(exact) == 4
    assert all(each["holds"] and each["codes_equal"] == 1.0 for each in exact)
    assert sum("states" in name and each["holds"] for name, each in rows.items()) == 2


def test_every_way_of_bytes_is_measured_when_the_device_is_a_cpu(tmp_path: Path) -> None:
    rows = rows_of("transport", tmp_path)
    for way in (
        "shared memory, pinned",
        "device handles",
        "process group, two ranks on one device",
    ):
        assert rows[way]["1024 KiB"]["gb_s"] > 0.0
    assert rows["link, shared_memory"]["8 KB"]["p50_us"] > 0.0


class WarmRandomStage(RandomStage, WarmProcess):
    """Forked with its libraries."""


class WarmRandomLauncher(Launcher):
    def _service(self, name: str) -> type[ServiceProcess]:
        return WarmRandomStage


def test_sessions_are_measured_when_processes_make_their_own_weights(tmp_path: Path) -> None:
    report = Report({}, None, 240.0)
    rows = pipeline_rows(torch.device("cpu"), tmp_path, WarmRandomLauncher, lambda: report.left_s)
    report.run(rows)
    assert not report.failed, report.rows
    told = report.rows[-1]["2 sessions"]
    assert told["answers"] == 2
    assert 0.0 < told["ttfa_ms"]["p50"] <= told["ttfa_ms"]["p95"]
    assert told["rtf"]["p50"] > 0.0


def test_row_does_not_hold_when_codes_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path, 1, 5, 4)
    told, other = Answer(*(np.arange(6),) * 3), Answer(np.arange(6), np.arange(1, 7), np.arange(6))
    lab.answers["why"] = told
    for made, holds in (([told], True), ([other], False)):
        monkeypatch.setattr(fidelity, "_answers", lambda *_, made=made: made)
        assert fidelity._compare(lab, torch.device("cpu"), "float32", WAYS[0])["holds"] is holds
