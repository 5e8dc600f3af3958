"""The demand on other gateways. There is one stream to each gateway that has been discovered.

Gateways are identified by their boot IDs, because a gateway may have two addresses, and because
discovery also finds this gateway itself. If a stream breaks or is silent for too long, the demand
of its gateway is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from types import TracebackType

import grpc

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, Unavailable
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.v1 import demand_pb2
from antiphon.wire.stubs import demand_stub
from antiphon_gateway.changes import ChangeSignal
from antiphon_gateway.fleet.discovery.following import follow
from antiphon_gateway.fleet.discovery.replica_endpoint import Discovery, Endpoint
from antiphon_gateway.scaler.demand import GatewayWants, RoleWants

log = logging.getLogger("gateway.scaler")


class Peers:
    """Follows all other gateways for the duration of the context. `changes` is notified whenever
    their demand changes.
    """

    def __init__(
        self, discovery: Discovery, boot_id: str, config: GatewayConfig, changes: ChangeSignal
    ) -> None:
        self._discovery = discovery
        self._boot_id = boot_id
        self._config = config
        self._changes = changes
        self._told: dict[Endpoint, tuple[str, GatewayWants]] = {}
        self._following: dict[Endpoint, asyncio.Task[None]] = {}
        self._finding: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Peers:
        following = follow(self._discovery, self._take, self._config.health.reconnect_s)
        self._finding = asyncio.create_task(following)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tasks = [*self._following.values(), *filter(None, (self._finding,))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def told_by(self) -> frozenset[str]:
        """Return the addresses of all gateways that have reported their demand."""
        return frozenset(gateway.address for gateway in self._told)

    @property
    def wants(self) -> Iterable[GatewayWants]:
        """Return the needs of all gateways except for this one."""
        return dict(self._told.values()).values()

    def _take(self, endpoints: Iterable[Endpoint]) -> None:
        """Follow the given gateways and stop following all others."""
        places = {_place(each) for each in endpoints}
        for gone in self._following.keys() - places:
            self._following.pop(gone).cancel()
        for new in places - self._following.keys():
            self._following[new] = asyncio.create_task(self._follow(new))

    async def _follow(self, gateway: Endpoint) -> None:
        """Store a gateway's reports until this is cancelled or until it turns out that this is the
        same gateway.
        """
        address = gateway.address
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            while True:
                try:
                    async for told in self._messages(channel):
                        if told.boot_id == self._boot_id:
                            return
                        self._tell(gateway, told)
                    log.info("the gateway at %s closed its stream", address)
                except AntiphonError as error:
                    log.info("the gateway at %s: %s", address, error.message)
                except grpc.aio.AioRpcError as failure:
                    log.info("the gateway at %s: %s", address, failure.details())
                except Exception:
                    log.exception("following the gateway at %s failed; retrying", address)
                finally:
                    self._forget(gateway)
                await asyncio.sleep(self._config.health.reconnect_s)

    async def _messages(self, channel: grpc.aio.Channel) -> AsyncIterator[demand_pb2.GatewayDemand]:
        """Yield a gateway's reports until its stream ends. Raises `Unavailable` if it is silent for
        too long.
        """
        stream = demand_stub(channel).WatchDemand(demand_pb2.WatchDemandRequest())
        silence_s = self._config.scaler.silence_s
        try:
            while True:
                async with asyncio.timeout(silence_s):
                    message = await stream.read()
                if not isinstance(message, demand_pb2.GatewayDemand):
                    return
                yield message
        except TimeoutError:
            raise Unavailable(f"it has been silent for {silence_s:g} s") from None
        finally:
            stream.cancel()

    def _tell(self, gateway: Endpoint, told: demand_pb2.GatewayDemand) -> None:
        roles = told.roles.items()
        wants = {role: RoleWants(each.waiting, each.refused) for role, each in roles}
        if self._told.get(gateway) != (told.boot_id, wants):
            self._told[gateway] = told.boot_id, wants
            self._changes.tell()

    def _forget(self, gateway: Endpoint) -> None:
        if self._told.pop(gateway, None) is not None:
            self._changes.tell()


def _place(endpoint: Endpoint) -> Endpoint:
    """Return the part of an endpoint that identifies the gateway's process. Conditions aren't
    included, because they can change.
    """
    return Endpoint(role=endpoint.role, uid=endpoint.uid, address=endpoint.address)
