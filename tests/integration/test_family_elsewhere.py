"""A family that is a distribution of its own is served like those of this repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import antiphon
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Launcher

pytestmark = pytest.mark.processes

FAMILY = Path(__file__).parent / "echo_family"
ENTRY_POINTS = "[antiphon.pipelines]\necho = echo_family.pipeline:PIPELINE\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the distribution lies, which processes started from here can import."""
    site = tmp_path / "site"
    shutil.copytree(FAMILY, site / "echo_family")
    facts = site / "echo_family-0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-family\nVersion: 0\n")
    (facts / "entry_points.txt").write_text(ENTRY_POINTS)
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(site), path))))
    monkeypatch.syspath_prepend(site)
    return site


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint directory that says what it is, and has nothing else."""
    directory = tmp_path / "model"
    directory.mkdir()
    config = {"architectures": ["EchoForConditionalGeneration"]}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def refusal(model: Path) -> str:
    """What the stage prints when it refuses to start."""
    ended = subprocess.run(
        [sys.executable, "-m", "antiphon_services", "echo", "--model", str(model)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    return ended.stderr


async def test_services_and_gateway_serve_a_family_that_is_installed_beside_them(
    installed: Path, model: Path
) -> None:
    async with (
        Launcher(local_deployment(model)) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        assert set(running.processes) == {"echo", "gateway"}
        answer = await client.generate("Is anybody there?").collect()
    assert answer.text == "Is anybody there?"


def test_stage_names_the_distribution_when_its_declaration_cannot_be_used(
    installed: Path, model: Path
) -> None:
    (installed / "echo_family" / "pipeline.py").write_text("import nothing_of_that_name\n")
    said = refusal(model)
    assert "echo-family (echo_family.pipeline:PIPELINE) can't be used" in said
    assert "No module named 'nothing_of_that_name'" in said
    assert "Traceback" not in said


def test_stage_names_the_module_that_the_family_does_not_have(installed: Path, model: Path) -> None:
    (installed / "echo_family" / "stages" / "echo" / "load.py").unlink()
    said = refusal(model)
    assert "echo: the pipeline echo has no module echo_family.stages.echo.load" in said
