"""Variables of the environment in addresses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.deployment.environment import expanded
from antiphon.deployment.gateway_config import ScalerConfig
from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig, dump_deployment
from antiphon.errors import InvalidArgument
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon_gateway.config import read_options


@pytest.mark.parametrize(
    ("address", "pod_ip", "meant"),
    [
        ("${POD_IP}:50051", "10.1.2.3", "10.1.2.3:50051"),
        ("${POD_IP}:50051", "fd00::7", "[fd00::7]:50051"),
        ("[${POD_IP}]:50051", "fd00::7", "[fd00::7]:50051"),
        ("${POD_IP}:${POD_IP}", "a", "a:a"),
        ("0.0.0.0:50051", "10.1.2.3", "0.0.0.0:50051"),
    ],
)
def test_variables_take_their_values_and_ipv6_its_brackets(
    address: str, pod_ip: str, meant: str
) -> None:
    assert expanded(address, {"POD_IP": pod_ip}, field="listen") == meant


@pytest.mark.parametrize("environment", [{}, {"POD_IP": ""}])
def test_a_variable_that_is_not_set_is_named_with_the_setting(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="variable POD_IP") as caught:
        expanded("${POD_IP}:1", environment, field="stages.talker.listen")
    assert caught.value.field == "stages.talker.listen"


# It runs in a process of its own, because `main` changes signal handlers and the allocator.
STAGE = """
import sys
from antiphon.errors import InvalidArgument
from antiphon.runtime.server.main import main

def load(pipeline, role, model, config):
    print(config.listen, config.advertise, config.health_listen, config.metrics_listen)
    raise InvalidArgument("that was all")

sys.exit(main(load, sys.argv[1:]))
"""


def test_a_stage_listens_and_is_reached_where_its_environment_says(tmp_path: Path) -> None:
    config = StageConfig(
        listen="${POD_IP}:0",
        health_listen="${POD_IP}:0",
        metrics_listen="${POD_IP}:0",
        advertise="${POD_IP}:50051",
    )
    file = tmp_path / "deployment.yaml"
    deployment = Deployment(model=str(tmp_path), pipeline=PIPELINE.name, stages={"talker": config})
    file.write_bytes(dump_deployment(deployment))

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "POD_IP"}
        return subprocess.run(
            [sys.executable, "-c", STAGE, "talker", "--config", str(file)],
            env=environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    ended = run(POD_IP="127.1.2.3")
    assert ended.returncode == 2
    assert ended.stdout.split() == ["127.1.2.3:0", "127.1.2.3:50051", "127.1.2.3:0", "127.1.2.3:0"]
    assert "that was all" in ended.stderr
    ended = run()
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "stages.talker.listen" in ended.stderr


def test_the_gateway_listens_where_its_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = GatewayConfig(
        http_listen="${POD_IP}:8000",
        grpc_listen="127.0.0.1:0",
        scaler=ScalerConfig(listen="${POD_IP}:9466"),
    )
    file = tmp_path / "deployment.yaml"
    file.write_bytes(dump_deployment(Deployment(gateway=gateway)))
    monkeypatch.setenv("POD_IP", "fd00::7")
    told = read_options(["--config", str(file)]).deployment.gateway
    assert (told.http_listen, told.grpc_listen) == ("[fd00::7]:8000", "127.0.0.1:0")
    assert told.scaler.listen == "[fd00::7]:9466"
