"""The Dockerfiles name files, modules and versions that exist. Nothing is built here."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from chart_rendering import CHART, ROOT, render

from antiphon.deployment.plan import EMBEDDED_MODEL

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


@pytest.mark.parametrize("path", DOCKERFILES)
def test_installed_extra_is_declared(path: str) -> None:
    (extra,) = re.findall(r'"/src\[(\w+)\]"', " ".join(_all(path, "RUN")))
    assert extra in _project()["optional-dependencies"]


def test_torch_is_the_one_of_the_stage_extra_and_not_in_the_gateway() -> None:
    wanted = next(
        each for each in _project()["optional-dependencies"]["stage"] if each.startswith("torch")
    )
    assert f'"{wanted}"' in " ".join(_all("services/Dockerfile", "RUN"))
    assert "torch" not in " ".join(_all("gateway/Dockerfile", "RUN"))


@pytest.mark.parametrize("path", DOCKERFILES)
def test_python_is_one_that_the_project_supports(path: str) -> None:
    (image,) = _all(path, "FROM")
    assert image == "python:3.11-slim"
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


def test_stage_image_runs_the_stage_that_it_was_built_for() -> None:
    (command,) = _all("services/Dockerfile", "CMD")
    assert command == f'exec python -m "services.${{STAGE}}" --config {CONFIG}'
    (default,) = re.findall(r"STAGE=(\w+)", " ".join(_all("services/Dockerfile", "ARG")))
    assert (ROOT / "services" / default / "__main__.py").is_file()


def test_stage_image_has_the_embedded_model_where_the_chart_looks_for_it() -> None:
    (work,) = _all("services/Dockerfile", "WORKDIR")
    folder, name = EMBEDDED_MODEL.split("/")
    assert f"{folder} {folder}" in _all("services/Dockerfile", "COPY")
    assert render().deployment_file().model == f"{work}/{folder}/{name}"


def test_image_names_are_the_charts_defaults() -> None:
    for path in DOCKERFILES:
        (tag,) = re.findall(r"-t (\S+) \.", (ROOT / path).read_text())
        assert f"repository: {tag}\n" in (CHART / "values.yaml").read_text()
