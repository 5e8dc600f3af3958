"""Variables of the environment in addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.deployment.environment import expanded
from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig, dump_deployment
from antiphon.errors import InvalidArgument
from antiphon.pipelines.graph import Pipeline
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.server.main import main
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


def test_a_stage_listens_and_is_reached_where_its_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = StageConfig(
        listen="${POD_IP}:0",
        health_listen="${POD_IP}:0",
        metrics_listen="${POD_IP}:0",
        advertise="${POD_IP}:50051",
    )
    file = tmp_path / "deployment.yaml"
    deployment = Deployment(model=str(tmp_path), pipeline=PIPELINE.name, stages={"talker": config})
    file.write_bytes(dump_deployment(deployment))
    told: list[StageConfig] = []

    def load(pipeline: Pipeline, role: str, model: Path, config: StageConfig) -> LoadedStage:
        told.append(config)
        raise InvalidArgument("that was all")

    monkeypatch.setenv("POD_IP", "127.1.2.3")
    assert main(load, ["talker", "--config", str(file)]) == 2
    assert "that was all" in capsys.readouterr().err
    (config,) = told
    assert (config.listen, config.advertise) == ("127.1.2.3:0", "127.1.2.3:50051")
    assert (config.health_listen, config.metrics_listen) == ("127.1.2.3:0", "127.1.2.3:0")
    monkeypatch.delenv("POD_IP")
    assert main(load, ["talker", "--config", str(file)]) == 2
    assert "stages.talker.listen" in capsys.readouterr().err
    assert len(told) == 1


def test_the_gateway_listens_where_its_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = GatewayConfig(http_listen="${POD_IP}:8000", grpc_listen="127.0.0.1:0")
    file = tmp_path / "deployment.yaml"
    file.write_bytes(dump_deployment(Deployment(gateway=gateway)))
    monkeypatch.setenv("POD_IP", "fd00::7")
    told = read_options(["--config", str(file)]).deployment.gateway
    assert (told.http_listen, told.grpc_listen) == ("[fd00::7]:8000", "127.0.0.1:0")
