"""`make up` hands settings on, and chooses the environment that an engine needs."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from antiphon_tools.launcher.__main__ import command_line, deployment_of_options
from antiphon_tools.launcher.plan import CHECKOUT

FILE = "gateway: {http_listen: '0.0.0.0:9000', grpc_listen: '0.0.0.0:9001'}"

# Of whoever runs the tests, `make test ARGS=...` among them.
OTHERS = {"PORT", "GRPC_PORT", "ARGS", "MODEL", "STAGE", "REPLICAS", "MAKEFLAGS", "MFLAGS"}


def command_of(*variables: str) -> str:
    """What `make up` would run."""
    said = subprocess.run(
        ["make", "--dry-run", "up", *variables],
        cwd=CHECKOUT,
        env={name: value for name, value in os.environ.items() if name not in OTHERS},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.replace("\\\n", " ")
    (command,) = [line for line in said.splitlines() if " -m antiphon_tools.launcher up" in line]
    return command


@pytest.mark.parametrize(
    ("stage", "environment", "handed_on"),
    [
        ("", ".venv", ""),
        ("brain.slots=4 mouth.device=cuda:1", ".venv", "--stage brain.slots=4 mouth.device=cuda:1"),
        ("brain.engine=torch", ".venv", "--stage brain.engine=torch"),
        (
            "mouth.slots=4 brain.engine=vllm",
            ".venv-vllm",
            "--stage mouth.slots=4 brain.engine=vllm",
        ),
    ],
)
def test_settings_of_stages_are_handed_on_and_choose_the_environment(
    stage: str, environment: str, handed_on: str
) -> None:
    command = command_of(f"STAGE={stage}")
    assert command.startswith(f"{environment}/bin/python ")
    assert ("--stage" in command) is bool(handed_on)
    assert handed_on in command


@pytest.mark.parametrize(
    ("variables", "from_file", "http", "grpc"),
    [
        ((), False, "localhost:8000", "localhost:50050"),
        (("PORT=0", "GRPC_PORT=7"), False, "localhost:0", "localhost:7"),
        ((), True, "0.0.0.0:9000", "0.0.0.0:9001"),
        (("PORT=8001",), True, "0.0.0.0:8001", "0.0.0.0:9001"),
        (("GRPC_PORT=8002",), True, "0.0.0.0:9000", "0.0.0.0:8002"),
    ],
)
def test_endpoints_are_where_the_file_has_them_unless_a_port_is_given(
    variables: tuple[str, ...], from_file: bool, http: str, grpc: str, tmp_path: Path
) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(FILE)
    config = (f"ARGS=--config {shlex.quote(str(file))}",) if from_file else ()
    _, _, arguments = command_of(*variables, *config).partition(" -m antiphon_tools.launcher ")
    options = command_line().parse_args(shlex.split(arguments))
    gateway = deployment_of_options(options).gateway
    assert (gateway.http_listen, gateway.grpc_listen) == (http, grpc)


def test_port_of_the_file_may_be_an_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text("gateway: {http_listen: '0.0.0.0:${HTTP_PORT}'}")
    monkeypatch.setenv("HTTP_PORT", "9000")
    options = command_line().parse_args(["up", "--config", str(file)])
    assert deployment_of_options(options).gateway.http_listen == "0.0.0.0:9000"


def test_grpc_endpoint_takes_a_free_port_when_the_file_names_none(tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text("gateway: {queue: {max_calls: 4}}")
    options = command_line().parse_args(["up", "--config", str(file)])
    assert deployment_of_options(options).gateway.grpc_listen == "localhost:0"
