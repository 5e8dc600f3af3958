"""Replicas that move while the watch of a real discovery is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from antiphon.deployment.discovery import DiscoveryConfig
from antiphon_gateway.fleet.discovery.kubernetes import KubernetesEndpoints
from antiphon_tools.chaos import registry as chaos_registry
from antiphon_tools.chaos.registry import NAMESPACE, WAYS, replica_registry

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG_S = 120.0


class Chosen(random.Random):
    """Always draws the same."""

    def __init__(self, drawn: str) -> None:
        super().__init__(0)
        self._drawn = drawn

    def choice(self, seq: Sequence[Any]) -> Any:
        assert self._drawn in seq
        return self._drawn


@pytest.mark.parametrize("way", WAYS)
async def test_a_replica_that_moved_unseen_is_found(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_registry, "AWAY_S", 0.2)
    kubeconfig = tmp_path / "kubeconfig"
    async with asyncio.timeout(LONG_S), replica_registry(kubeconfig) as registry:
        stays = await registry.add("talker", "127.0.0.1:1")
        before = await registry.add("talker#2", "127.0.0.1:2")
        config = DiscoveryConfig(
            kind="kubernetes",
            namespace=NAMESPACE,
            services={"talker": "talker"},
            kubeconfig=str(kubeconfig),
            relist_s=0.5,
        )
        sets = KubernetesEndpoints(config, jitter=lambda: 0.0).watch()
        found = {each.address for each in await anext(sets)}
        assert found == {stays, before}
        await registry.move_unseen("talker#2", Chosen(way))
        after = registry.wires["talker#2"].address
        assert after != before
        while found != {stays, after}:
            found = {each.address for each in await anext(sets)}
        host, _, port = before.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))
