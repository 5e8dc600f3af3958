"""The scaler's port. KEDA requests the total demand from it, and other gateways request the demand
on this gateway.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any

import grpc

from antiphon.deployment.schema import Deployment
from antiphon.errors import Unavailable
from antiphon.transport.channel import SERVER_OPTIONS
from antiphon.transport.listening import listen_at
from antiphon.v1 import demand_pb2, demand_pb2_grpc
from antiphon_gateway.admission.reservation import Admission
from antiphon_gateway.changes import ChangeSignal
from antiphon_gateway.fleet.discovery.replica_endpoint import Discovery
from antiphon_gateway.scaler.demand import Capacity, demand_of, target_of
from antiphon_gateway.scaler.external_scaler import ExternalScaler
from antiphon_gateway.scaler.own_demand import LONGEST_INTERVAL_S, SHORTEST_INTERVAL_S, OwnDemand
from antiphon_gateway.scaler.peers import Peers

MAX_MESSAGE_BYTES = 64 << 10
MAX_CALLS = 1024
"""The maximum number of concurrent calls on this port, including those from KEDA and those from
other gateways.
"""


class Scaler(demand_pb2_grpc.DemandServiceServicer):
    """Serves on `gateway.scaler.listen` for the duration of the context. `address` has the form
    "host:port".

    `boot_id` identifies this gateway to other gateways. `capacity` returns the slots of each stage.
    `changes` is notified when these or any other inputs of the demand change. Entering the context
    raises `InvalidArgument` if the address is invalid, and `Unavailable` if it is already in use.
    """

    def __init__(
        self,
        deployment: Deployment,
        admission: Admission,
        gateways: Discovery,
        capacity: Callable[[], Mapping[str, Capacity]],
        changes: ChangeSignal,
    ) -> None:
        config = deployment.gateway
        self.changes = changes
        self.address = ""
        self._deployment = deployment
        self._capacity = capacity
        self.boot_id = uuid.uuid4().hex
        self._own = OwnDemand(admission, changes)
        self.peers = Peers(gateways, self.boot_id, config, changes)
        self._held = AsyncExitStack()
        options = dict(SERVER_OPTIONS) | {"grpc.max_receive_message_length": MAX_MESSAGE_BYTES}
        self._server = grpc.aio.server(
            options=list(options.items()), maximum_concurrent_rpcs=MAX_CALLS
        )
        demand_pb2_grpc.add_DemandServiceServicer_to_server(self, self._server)
        ExternalScaler(self).add_to(self._server)

    async def __aenter__(self) -> Scaler:
        listen = self._deployment.gateway.scaler.listen
        self.address = listen_at(self._server, listen, field="gateway.scaler.listen")
        await self._server.start()
        await self._held.enter_async_context(self.peers)
        following = asyncio.create_task(self._own.follow())
        self._held.callback(following.cancel)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._server.stop(grace=None)
        await self._held.aclose()

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of all stages."""
        return tuple(self._deployment.stages)

    def demand(self, role: str) -> float:
        """Return the number of slots that all gateways together need on a stage, as far as this is
        known.
        """
        in_use = self._capacity().get(role, Capacity()).in_use
        return demand_of(role, in_use, (self._own.now, *self.peers.wants))

    def known_demand(self, role: str) -> float:
        """Like `demand`, but raises `Unavailable` if the actual demand may be higher."""
        if unknown := self._capacity().get(role, Capacity()).unknown:
            raise Unavailable(
                f"the number of used slots of the stage {role} is unknown: {unknown}", stage=role
            )
        return self.demand(role)

    def target(self, role: str, share: float | None) -> float:
        """Return how many slots should be in use on each replica."""
        slots = self._capacity().get(role, Capacity()).slots
        share = self._deployment.gateway.scaler.target if share is None else share
        return target_of(share, slots, self._deployment.stage(role).slots)

    async def WatchDemand(
        self,
        request: demand_pb2.WatchDemandRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[demand_pb2.GatewayDemand]:
        """Yield the needs of the requests on this gateway until either side closes the call."""
        while True:
            changed = self._own.changes.next
            yield self._told()
            await asyncio.sleep(SHORTEST_INTERVAL_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_INTERVAL_S - SHORTEST_INTERVAL_S):
                    await changed.wait()

    def _told(self) -> demand_pb2.GatewayDemand:
        roles = {
            role: demand_pb2.RoleDemand(waiting=each.waiting, refused=each.refused)
            for role, each in self._own.now.items()
        }
        return demand_pb2.GatewayDemand(boot_id=self.boot_id, roles=roles)
