"""Finds replicas through the EndpointSlices of the Kubernetes API, which are listed and then
watched.

After `relist_s` seconds, or after a failure, each watch is replaced by a new list. This limits the
effects of a missed event or a half-open connection. While the API can't be reached, the last known
endpoints stay in use.
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
    """Discovers the pods of the services in `config.services`. Tests can replace `sleep` and
    `jitter`. The latter returns a number between 0 and 1.

    Raises `InvalidArgument` if the `kubernetes` package isn't installed or if the namespace is
    unknown.
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
        """Yield the endpoints after the first list and whenever they change."""
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
        """Apply a change to a slice. Raises `Unavailable` if the slice can't be decoded."""
        if event.type not in {"ADDED", "MODIFIED", "DELETED"}:
            return
        try:
            changed = _slice_of.decode(event.object)
        except msgspec.DecodeError as error:
            raise Unavailable(f"can't parse an endpoint slice: {error}") from error
        if event.type == "DELETED":
            self._reflector.remove(changed)
        else:
            self._reflector.put(changed)

    def _news(self) -> frozenset[Endpoint] | None:
        """Return all endpoints, if they have changed since they were last reported."""
        endpoints = self._reflector.endpoints()
        if endpoints == self._told:
            return None
        self._told = endpoints
        return endpoints

    def _well(self) -> None:
        """Reset the backoff, because a watch has received an event or has ended normally."""
        if self._failures:
            log.info("discovery: watching endpoint slices again")
        self._failures = 0

    async def _pause(self, error: Exception) -> None:
        """Wait before the next list. The wait gets longer with each consecutive failure."""
        if not isinstance(error, AntiphonError):
            log.error("discovery failed; keeping the known replicas", exc_info=error)
        elif self._failures == 0:
            log.warning("discovery: %s; keeping the known replicas", error.message)
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
            f"gateway.discovery.kind: `kubernetes` requires the package {error.name}, which is "
            "not installed; install antiphon[kubernetes]",
            field="gateway.discovery.kind",
        ) from error


def _own_namespace(api: ModuleType) -> str:
    """Read the namespace of the pod that this process runs in."""
    try:
        text: str = api.NAMESPACE_FILE.read_text()
    except OSError as error:
        raise InvalidArgument(
            f"gateway.discovery.namespace: is required, because {api.NAMESPACE_FILE} can't be "
            f"read: {error.strerror}",
            field="gateway.discovery.namespace",
        ) from error
    return text.strip()
