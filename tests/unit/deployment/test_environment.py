"""Variables of the environment in addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.deployment.environment import expanded
from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig, dump_deployment
from antiphon.errors import InvalidArgument
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.server import main as stage_process
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StageConfig(
        listen="${POD_IP}:50051",
        health_listen="${POD_IP}:50052",
        metrics_listen="${POD_IP}:9464",
        advertise="${POD_IP}:50051",
    )
    file = tmp_path / "deployment.yaml"
    deployment = Deployment(model=str(tmp_path), pipeline=PIPELINE.name, stages={"talker": config})
    file.write_bytes(dump_deployment(deployment))
    monkeypatch.setenv("POD_IP", "10.1.2.3")
    arguments = stage_process._parser(None).parse_args(["talker", "--config", str(file)])
    told = stage_process._options(arguments).config
    assert (told.listen, told.advertise) == ("10.1.2.3:50051", "10.1.2.3:50051")
    assert (told.health_listen, told.metrics_listen) == ("10.1.2.3:50052", "10.1.2.3:9464")
    monkeypatch.delenv("POD_IP")
    with pytest.raises(InvalidArgument, match=r"stages\.talker\.listen"):
        stage_process._options(arguments)


def test_the_gateway_listens_where_its_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = GatewayConfig(http_listen="${POD_IP}:8000", grpc_listen="127.0.0.1:0")
    file = tmp_path / "deployment.yaml"
    file.write_bytes(dump_deployment(Deployment(gateway=gateway)))
    monkeypatch.setenv("POD_IP", "fd00::7")
    told = read_options(["--config", str(file)]).deployment.gateway
    assert (told.http_listen, told.grpc_listen) == ("[fd00::7]:8000", "127.0.0.1:0")
