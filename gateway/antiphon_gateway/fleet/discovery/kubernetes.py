"""EndpointSlices of the Kubernetes API: listed, then watched until it is time for the next list.

Any break is followed by a full list, and so is every watch after `relist_s`: an event that was
missed, or a connection that is open on this side alone, costs no more than that. While the API is
away the last set holds.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType

import msgspec

from antiphon.deployment.schema import DiscoveryConfig
from antiphon.errors import AntiphonError, InvalidArgument, Unavailable
from antiphon_gateway.fleet.discovery.reflector import Reflector
from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint
from antiphon_gateway.fleet.discovery.slices import EndpointSlice, WatchEvent

log = logging.getLogger("gateway")

FIRST_PAUSE_S = 0.1

_slice_of = msgspec.json.Decoder(EndpointSlice)


class KubernetesEndpoints:
    """A `Discovery`: the pods of `config.services`. `sleep` and `jitter` (0 to 1) are for tests.

    Raises `InvalidArgument` where the `kubernetes` package, or the namespace, is not there.
    """

    def __init__(
        self,
        config: DiscoveryConfig,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._config = config
        self._sleep = sleep
        self._jitter = jitter
        self._api = _api_module()
        self._namespace = config.namespace or _own_namespace(self._api)
        self._reflector = Reflector(config.services, config.port, config.port_name)
        self._failures = 0
        self._told: frozenset[Endpoint] | None = None
        self.last_sync: float | None = None

    async def watch(self) -> AsyncIterator[frozenset[Endpoint]]:
        """The endpoints, from the first list on."""
        self._told = None
        while True:
            try:
                async with self._api.open_slices(self._config, self._namespace) as slices:
                    listed = await slices.list()
                    self._reflector.replace(listed.items or ())
                    self.last_sync = time.time()
                    if (news := self._news()) is not None:
                        yield news
                    async for event in slices.watch(listed.metadata.resource_version):
                        self._well()
                        self._apply(event)
                        if (news := self._news()) is not None:
                            yield news
                self._well()
            except Exception as error:
                await self._pause(error)

    def _apply(self, event: WatchEvent) -> None:
        """Raises `Unavailable` for a slice that cannot be read."""
        if event.type not in {"ADDED", "MODIFIED", "DELETED"}:
            return
        try:
            changed = _slice_of.decode(event.object)
        except msgspec.DecodeError as error:
            raise Unavailable(f"an endpoint slice cannot be read: {error}") from error
        if event.type == "DELETED":
            self._reflector.remove(changed)
        else:
            self._reflector.put(changed)

    def _news(self) -> frozenset[Endpoint] | None:
        """Return all endpoints if they have changed since the last report."""
        endpoints = self._reflector.endpoints()
        if endpoints == self._told:
            return None
        self._told = endpoints
        return endpoints

    def _well(self) -> None:
        """Reset the backoff: a watch has sent an event, or has lasted."""
        if self._failures:
            log.info("discovery: endpoint slices are watched again")
        self._failures = 0

    async def _pause(self, error: Exception) -> None:
        """Wait, longer each time, before the next list."""
        if not isinstance(error, AntiphonError):
            log.error("discovery failed; what is known holds", exc_info=error)
        elif self._failures == 0:
            log.warning("discovery: %s; what is known holds", error.message)
        else:
            log.debug("discovery: %s", error.message)
        longest_s = min(self._config.max_pause_s, FIRST_PAUSE_S * 2 ** min(self._failures, 30))
        self._failures += 1
        await self._sleep(longest_s * (0.5 + 0.5 * self._jitter()))


def _api_module() -> ModuleType:
    try:
        return importlib.import_module("antiphon_gateway.fleet.discovery.kubernetes_api")
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f"gateway.discovery.kind: `kubernetes` needs a package that is not installed "
            f"({error.name}); install antiphon[kubernetes]",
            field="gateway.discovery.kind",
        ) from error


def _own_namespace(api: ModuleType) -> str:
    """The namespace of the pod that this is."""
    try:
        text: str = api.NAMESPACE_FILE.read_text()
    except OSError as error:
        raise InvalidArgument(
            f"gateway.discovery.namespace: name it; {api.NAMESPACE_FILE} cannot be read: "
            f"{error.strerror}",
            field="gateway.discovery.namespace",
        ) from error
    return text.strip()
