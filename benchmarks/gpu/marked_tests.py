"""Runs the tests that require a GPU as a row."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import torch

from benchmarks.gpu.report import HOLDS, Figures, Row

ROOT = Path(__file__).parents[2]
MARK = "pytest.mark.gpu"
# Otherwise, other plug-ins that are installed on the machine would be loaded, and their warnings
# would fail every test.
PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout", "xdist")
LEAST_S = 60.0


def marked_test_rows(
    device: torch.device, directory: Path, left_s: Callable[[], float]
) -> list[Row]:
    """Return a row that runs all marked tests.

    On a CPU, they are skipped, which still verifies that they can be imported.
    """
    run = partial(_tests, device, directory / "tests.xml", left_s)
    least_s = LEAST_S if device.type == "cuda" else 0.0
    return [Row("tests that need a GPU", run, least_s=least_s)]


def marked_files() -> list[str]:
    """Return the test files with the mark. Other files import packages that may not be
    installed.
    """
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(each) for each in paths if MARK in each.read_text("utf-8")]


def _tests(device: torch.device, result: Path, left_s: Callable[[], float]) -> Figures:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-W", "default"]
    for plugin in PLUGINS:
        command += ["-p", plugin]
    # On a machine with a GPU, skipped tests count as failed.
    command += ["--gpu"] if device.type == "cuda" else []
    command += [f"--junit-xml={result}", *marked_files()]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=max(left_s(), 1.0),
    )
    if not result.exists():
        raise RuntimeError(f"pytest did not run: {(ran.stdout + ran.stderr)[-1500:]}")
    suites = ElementTree.parse(result).getroot().findall("testsuite")
    told: Figures = {
        name: sum(int(each.get(name, 0)) for each in suites)
        for name in ("tests", "failures", "errors", "skipped")
    }
    if ran.returncode:
        told["output"] = ran.stdout[-1500:]
    return {**told, HOLDS: ran.returncode == 0 and told["tests"] > 0}
