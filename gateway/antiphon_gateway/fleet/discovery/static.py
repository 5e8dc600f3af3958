"""A discovery for fixed addresses that are part of the deployment's configuration."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping

from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint


class StaticAddresses:
    """A `Discovery` that returns fixed gRPC targets for each role. A replica's address also serves
    as its UID.
    """

    def __init__(self, addresses: Mapping[str, Iterable[str]]) -> None:
        self._endpoints = frozenset(
            Endpoint(role=role, uid=address, address=address)
            for role, all_of_role in addresses.items()
            for address in all_of_role
        )
        self.last_sync: float | None = None

    async def watch(self) -> AsyncIterator[frozenset[Endpoint]]:
        """Yield the only set of endpoints and then wait forever."""
        self.last_sync = time.time()
        yield self._endpoints
        await asyncio.Event().wait()
