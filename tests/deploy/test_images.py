"""The Dockerfiles name files, modules and versions that exist. Nothing is built here."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from antiphon_tools.launcher.plan import EMBEDDED_MODEL
from tests.deploy.chart_rendering import CHART, ROOT, render

DOCKERFILES = ("gateway/Dockerfile", "services/Dockerfile")
CONFIG = "/etc/antiphon/deployment.yaml"


def _instructions(path: str) -> list[tuple[str, str]]:
    """Instruction and its arguments, in order."""
    text = (ROOT / path).read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return [(name, rest) for name, rest in pairs]


def _all(path: str, name: str) -> list[str]:
    return [rest for instruction, rest in _instructions(path) if instruction == name]


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _let_through() -> set[str]:
    """Top-level names that .dockerignore sends to the builder."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    return {line.removeprefix("!") for line in lines if line.startswith("!")}


@pytest.mark.parametrize("path", DOCKERFILES)
def test_copied_sources_exist_and_are_sent_to_the_builder(path: str) -> None:
    copies = [copy for copy in _all(path, "COPY") if not copy.startswith("--from=")]
    sources = [source for copy in copies for source in copy.split()[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert {source, Path(source).parts[0]} & _let_through()


def _defaults(path: str) -> dict[str, str]:
    """The build arguments and what they are when nobody says."""
    given = (argument.partition("=") for argument in _all(path, "ARG"))
    return {name: value.strip('"') for name, equals, value in given if equals}


@pytest.mark.parametrize("path", DOCKERFILES)
def test_library_is_installed_in_place_because_the_wheel_has_the_client_alone(path: str) -> None:
    said = _instructions(path)
    installed = next(at for at, (name, rest) in enumerate(said) if "--editable" in rest)
    before = said[:installed]
    assert ("WORKDIR", "/app") in before
    copied = {name for kind, rest in before if kind == "COPY" for name in rest.split()[:-1]}
    assert {"pyproject.toml", "antiphon"} <= copied
    # The build backend stops without the files that the project names.
    assert _project()["readme"] in copied


def _said(path: str, start: str, folder: Path, **environment: str) -> list[str]:
    """What the instruction does where its tools only say what they were asked."""
    for tool in ("apt-get", "rm", "pip"):
        (folder / tool).write_text(f'#!/bin/sh\necho {tool} "$@"\n')
        (folder / tool).chmod(0o755)
    (chosen,) = (run for run in _all(path, "RUN") if run.startswith(start))
    return subprocess.run(
        ["/bin/sh", "-ec", chosen],
        env=_defaults(path) | environment | {"PATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()


@pytest.mark.parametrize("path", DOCKERFILES)
def test_packages_are_those_of_the_lock_files_and_no_others(path: str, tmp_path: Path) -> None:
    locked = "pip install --no-cache-dir --no-deps --require-hashes"
    (usual,) = _said(path, locked, tmp_path)
    assert usual == f"{locked} -r locks/{_defaults(path)['LOCKS']}.txt"
    (told,) = _said(path, locked, tmp_path, LOCKS="one two", TORCH_INDEX_URL="index")
    assert told.startswith(f"{locked} -r locks/one.txt -r locks/two.txt")
    assert told.endswith("--extra-index-url index") is (path == "services/Dockerfile")
    for instruction in _all(path, "RUN"):
        if "pip install" in instruction:
            assert "--no-deps" in instruction
    assert "--no-build-isolation" in " ".join(_all(path, "RUN"))
    assert ("COPY", "tools/antiphon_tools/images/locks locks") in _instructions(path)


@pytest.mark.parametrize("path", DOCKERFILES)
def test_lock_files_that_are_named_exist(path: str) -> None:
    named = re.findall(r'LOCKS="?([a-z0-9 -]+)', (ROOT / path).read_text())
    assert len(named) > 1
    for name in " ".join(named).split():
        if not name.startswith("--"):
            assert (ROOT / "tools/antiphon_tools/images/locks" / f"{name}.txt").is_file(), name


@pytest.mark.parametrize(
    ("locks", "wanted"), [("stage-cpu", False), ("stage-cuda", True), ("stage-vllm x", True)]
)
def test_stage_image_for_a_gpu_has_a_compiler(locks: str, wanted: bool, tmp_path: Path) -> None:
    said = _said("services/Dockerfile", "case", tmp_path, LOCKS=locks)
    installed = [line for line in said if line.startswith("apt-get install")]
    assert [" gcc " in line for line in installed] == [True] * wanted


@pytest.mark.parametrize("path", DOCKERFILES)
def test_base_is_named_by_who_builds(path: str) -> None:
    # A stage that builds something begins with the same.
    assert {each.partition(" AS ")[0] for each in _all(path, "FROM")} == {"${BASE}"}
    assert "BASE" in _all(path, "ARG")
    assert _project()["requires-python"] == ">=3.11"


@pytest.mark.parametrize("path", DOCKERFILES)
def test_user_is_the_charts_and_not_root(path: str) -> None:
    context = render().pods()["demo-antiphon-thinker"]["securityContext"]
    assert _all(path, "USER") == [f"{context['runAsUser']}:{context['runAsGroup']}"]
    assert f"--uid {context['runAsUser']}" in " ".join(_all(path, "RUN"))


@pytest.mark.parametrize(
    ("path", "component"),
    [("services/Dockerfile", "thinker"), ("gateway/Dockerfile", "gateway")],
)
def test_exposed_ports_are_the_charts(path: str, component: str) -> None:
    (container,) = render().pods()[f"demo-antiphon-{component}"]["containers"]
    ports = [str(port["containerPort"]) for port in container["ports"]]
    assert _all(path, "EXPOSE") == [" ".join(ports)]


def test_gateway_image_runs_the_gateway() -> None:
    (command,) = _all("gateway/Dockerfile", "CMD")
    assert json.loads(command) == ["python", "-m", "antiphon_gateway", "--config", CONFIG]
    assert (ROOT / "gateway/antiphon_gateway/__main__.py").is_file()


def _run_command(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What the stage image's command does where `python` only says what it was asked."""
    (directory / "python").write_text('#!/bin/sh\necho python "$@"\n')
    (directory / "python").chmod(0o755)
    (command,) = _all("services/Dockerfile", "CMD")
    return subprocess.run(
        json.loads(command),
        env={"PATH": str(directory), "STAGE": _defaults("services/Dockerfile")["STAGE"]}
        | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_stage_image_runs_the_stage_that_it_is_told(tmp_path: Path) -> None:
    assert ("ENV", "STAGE=${STAGE}") in _instructions("services/Dockerfile")
    ended = _run_command(tmp_path, STAGE="reader")
    assert ended.stdout == f"python -m antiphon_services reader --config {CONFIG}\n"


def test_stage_image_says_what_is_missing_when_it_is_told_no_stage(tmp_path: Path) -> None:
    ended = _run_command(tmp_path)
    assert ended.returncode != 0
    assert not ended.stdout
    assert "STAGE: names no role; set it" in ended.stderr


def test_stage_image_has_the_embedded_model_where_the_chart_looks_for_it() -> None:
    (work,) = _all("services/Dockerfile", "WORKDIR")
    folder, name = EMBEDDED_MODEL.split("/")
    assert f"{folder} {folder}" in _all("services/Dockerfile", "COPY")
    assert render().deployment_file().model == f"{work}/{folder}/{name}"


def test_image_names_are_the_charts_defaults() -> None:
    for path in DOCKERFILES:
        (tag,) = re.findall(r"-t (\S+) \.\n", (ROOT / path).read_text())
        assert f"repository: {tag}\n" in (CHART / "values.yaml").read_text()
