"""The Dockerfiles name files, modules and versions that exist. Nothing is built here."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from string import Template
from typing import Any

import pytest
from chart_rendering import CHART, ROOT, render

from tools.launcher.plan import EMBEDDED_MODEL

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
    sources = [source for copy in _all(path, "COPY") for source in copy.split()[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert Path(source).parts[0] in _let_through()


def _defaults(path: str) -> dict[str, str]:
    """The build arguments and what they are when nobody says."""
    return {name: value.strip('"') for name, value in (a.split("=", 1) for a in _all(path, "ARG"))}


def _installed_extras(path: str, **arguments: str) -> set[str]:
    """The extras that an image built with these arguments has."""
    (extras,) = re.findall(r'--editable "\.\[(.+)\]"', " ".join(_all(path, "RUN")))
    return set(Template(extras).substitute(_defaults(path) | arguments).split(","))


@pytest.mark.parametrize("path", DOCKERFILES)
def test_library_is_installed_in_place_because_the_wheel_has_the_client_alone(path: str) -> None:
    said = _instructions(path)
    installed = next(at for at, (name, rest) in enumerate(said) if "--editable" in rest)
    before = said[:installed]
    assert ("WORKDIR", "/app") in before
    assert {("COPY", "pyproject.toml ."), ("COPY", "antiphon antiphon")} <= set(before)


@pytest.mark.parametrize(
    ("path", "extras"),
    [("gateway/Dockerfile", {"gateway", "kubernetes"}), ("services/Dockerfile", {"stage"})],
)
def test_installed_extras_are_declared(path: str, extras: set[str]) -> None:
    assert _installed_extras(path) == extras <= set(_project()["optional-dependencies"])


def test_extras_that_can_be_asked_for_are_declared() -> None:
    (asked,) = re.findall(
        r"--build-arg EXTRAS=([a-z,]+)", (ROOT / "services/Dockerfile").read_text()
    )
    extras = _installed_extras("services/Dockerfile", EXTRAS=asked)
    assert extras == {"stage", "vllm"} <= set(_project()["optional-dependencies"])


@pytest.mark.parametrize(("extras", "wanted"), [("stage", False), ("stage,vllm", True)])
def test_stage_image_has_a_compiler_when_vllm_is_in_it(
    extras: str, wanted: bool, tmp_path: Path
) -> None:
    """The instruction runs where its tools only say what they were asked."""
    for tool in ("apt-get", "rm"):
        (tmp_path / tool).write_text(f'#!/bin/sh\necho {tool} "$@"\n')
        (tmp_path / tool).chmod(0o755)
    (chosen,) = (run for run in _all("services/Dockerfile", "RUN") if run.startswith("case"))
    said = subprocess.run(
        ["/bin/sh", "-ec", chosen],
        env={"EXTRAS": extras, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    installed = [line for line in said if line.startswith("apt-get install")]
    assert [" gcc " in line for line in installed] == [True] * wanted


def test_torch_is_the_one_of_the_stage_extra_and_not_in_the_gateway() -> None:
    wanted = next(
        each for each in _project()["optional-dependencies"]["stage"] if each.startswith("torch")
    )
    assert f'"{wanted}"' in " ".join(_all("services/Dockerfile", "RUN"))
    assert "torch" not in " ".join(_all("gateway/Dockerfile", "RUN"))


@pytest.mark.parametrize("path", DOCKERFILES)
def test_python_is_one_that_the_project_supports(path: str) -> None:
    assert _all(path, "FROM") == ["${BASE}"]
    assert _defaults(path)["BASE"] == "python:3.11-slim"
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
    assert json.loads(command) == ["python", "-m", "gateway", "--config", CONFIG]
    assert (ROOT / "gateway" / "__main__.py").is_file()


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
    assert ended.stdout == f"python -m services reader --config {CONFIG}\n"


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
        (tag,) = re.findall(r"-t (\S+) \.", (ROOT / path).read_text())
        assert f"repository: {tag}\n" in (CHART / "values.yaml").read_text()
