from __future__ import annotations

import pytest

from antiphon.deployment.schema import StageConfig, deployment_of
from antiphon.errors import InvalidArgument
from antiphon.transport.payload.registry import candidates, check_possible
from antiphon.transport.settings import LinkSettings
from antiphon_testkit.flat_settings import stage_config


def test_settings_are_refused_when_the_slab_is_no_power_of_two() -> None:
    with pytest.raises(InvalidArgument, match="power of two") as caught:
        LinkSettings.of(stage_config(slab_bytes=200_000))
    assert caught.value.field == "link.slab_bytes"


@pytest.mark.parametrize("transport", ["auto", "shared_memory", "nccl", "grpc"])
def test_every_transport_is_possible_here(transport: str) -> None:
    check_possible(LinkSettings.of(stage_config(transport=transport)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("transport", "device", "offered"),
    [
        ("auto", "cpu", ("shared_memory", "grpc")),
        ("auto", "cuda:0", ("shared_memory", "grpc")),
        ("nccl", "cuda:0", ("nccl",)),
        ("nccl", "cpu", ("nccl",)),
        ("grpc", "cuda", ("grpc",)),
    ],
)
def test_best_transport_is_offered_first(
    transport: str, device: str, offered: tuple[str, ...]
) -> None:
    config = stage_config(transport=transport, device=device)  # type: ignore[arg-type]
    assert candidates(LinkSettings.of(config)) == offered


def test_nothing_that_is_not_encrypted_leaves_the_host_with_mutual_tls() -> None:
    auto = LinkSettings.of(StageConfig(device="cuda:0"), mutual_tls=True)
    assert candidates(auto) == ("shared_memory", "grpc")
    with pytest.raises(InvalidArgument, match="not encrypted") as caught:
        check_possible(LinkSettings.of(stage_config(transport="nccl"), mutual_tls=True))
    assert caught.value.field == "link.transport"


def test_services_need_names_that_tell_them_apart() -> None:
    files = {"certificate_file": "c", "key_file": "k", "authority_file": "a"}
    with pytest.raises(InvalidArgument, match="role") as caught:
        deployment_of({"mutual_tls": files | {"name": "antiphon"}})
    assert "mutual_tls" in caught.value.field
    assert deployment_of({"mutual_tls": files}).mutual_tls is not None
