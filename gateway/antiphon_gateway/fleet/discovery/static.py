"""The addresses that the deployment names; they never change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping

from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint


class StaticAddresses:
    """A `Discovery` of fixed gRPC targets by role. Their uids are the addresses."""

    def __init__(self, addresses: Mapping[str, Iterable[str]]) -> None:
        self._endpoints = frozenset(
            Endpoint(role=role, uid=address, address=address)
            for role, all_of_role in addresses.items()
            for address in all_of_role
        )
        self.last_sync: float | None = None

    async def watch(self) -> AsyncIterator[frozenset[Endpoint]]:
        """The one set there is."""
        self.last_sync = time.time()
        yield self._endpoints
        await asyncio.Event().wait()
