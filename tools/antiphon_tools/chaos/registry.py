"""A fake Kubernetes API that lists the addresses of the replicas.

Connections to the API can be interrupted. Each replica is behind a proxy, which is called a wire,
and the API returns the addresses of these proxies.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from antiphon.deployment.discovery import DiscoveryConfig
from antiphon_testkit.cut_wire import CutWire
from antiphon_testkit.fake_kubernetes import FakeApi, endpoint, kubeconfig, serve_api
from antiphon_tools.launcher.plan import REPLICA_MARK, role_of

NAMESPACE = "chaos"
PORT_NAME = DiscoveryConfig().port_name
AWAY_S = 2.0
REFUSALS = (500, 503, 429)
WAYS = ("reset", "refused", "away", "silent")
"""The ways in which the gateway's watch can be interrupted.

The watch's connection can be reset. New connections are then either refused, or they fail because
the API temporarily doesn't listen. Alternatively, the connection stays open, but no more events are
sent on it.
"""


class ReplicaRegistry:
    """The wire of each process by name. Each wire has its own EndpointSlice in the API."""

    def __init__(self, api: FakeApi) -> None:
        self._api = api
        self._targets: dict[str, str] = {}
        self.wires: dict[str, CutWire] = {}

    async def add(self, name: str, address: str) -> str:
        """Add a process and return the address of the wire that leads to it."""
        self._targets[name] = address
        await self._open(name)
        return self.wires[name].address

    async def move_unseen(self, name: str, chance: random.Random) -> None:
        """Change the address of a replica while the gateway's watch is interrupted."""
        way = chance.choice(WAYS)
        match way:
            case "reset":
                self._api.reset()
            case "refused":
                self._api.refuse(*REFUSALS)
                self._api.reset()
            case "away":
                await self._api.stop()
            case "silent":
                self._api.go_silent()
        await self.wires[name].close()
        await self._open(name)
        if way == "away":
            await asyncio.sleep(AWAY_S)
            await self._api.start()

    async def close(self) -> None:
        """Close all wires."""
        for wire in self.wires.values():
            await wire.close()

    async def _open(self, name: str) -> None:
        wire = self.wires[name] = CutWire(self._targets[name])
        await wire.open()
        host, _, port = wire.address.rpartition(":")
        slice_name = name.replace(REPLICA_MARK, "-")
        self._api.put(slice_name, role_of(name), [endpoint(host)], ports={PORT_NAME: int(port)})


@asynccontextmanager
async def replica_registry(config: Path) -> AsyncIterator[ReplicaRegistry]:
    """Create a registry without replicas. `config` is written so that the gateway uses its API."""
    async with serve_api(NAMESPACE) as api:
        await asyncio.to_thread(config.write_text, yaml.safe_dump(kubeconfig(api.url)))
        registry = ReplicaRegistry(api)
        try:
            yield registry
        finally:
            await registry.close()
