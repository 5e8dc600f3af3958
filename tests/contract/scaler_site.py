"""Gateways with a scaler each, and what tells them of each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack

import grpc

from antiphon.deployment.schema import Deployment, StageConfig
from antiphon.transport.channel import SERVER_OPTIONS
from antiphon.v1 import demand_pb2, demand_pb2_grpc
from antiphon_gateway.admission.admission import AdmissionRequest
from antiphon_gateway.admission.reservation import Admission
from antiphon_gateway.changes import ChangeSignal
from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint
from antiphon_gateway.metrics import Metrics
from antiphon_gateway.scaler.demand import Capacity
from antiphon_gateway.scaler.scaler import Scaler
from antiphon_testkit.gateway_settings import gateway_config

SLOTS = {"thinker": 8, "talker": 4}
HERE = {"thinker": 1, "talker": 4}
"""Slots that a gateway has for its requests: the first one has the only thinker."""
SPOKEN = AdmissionRequest(frozenset(SLOTS))
WRITTEN = AdmissionRequest(frozenset({"thinker"}))


class Told:
    """A discovery that says what the test says."""

    def __init__(self) -> None:
        self.sets: asyncio.Queue[frozenset[Endpoint] | Exception] = asyncio.Queue()
        self.last_sync: float | None = None

    def tell(self, *addresses: str) -> None:
        places = (Endpoint(role="gateway", uid=each, address=each) for each in addresses)
        self.tell_endpoints(*places)

    def tell_endpoints(self, *endpoints: Endpoint) -> None:
        self.sets.put_nowait(frozenset(endpoints))

    async def watch(self) -> AsyncIterator[frozenset[Endpoint]]:
        while True:
            told = await self.sets.get()
            if isinstance(told, Exception):
                raise told
            yield told

    def fail(self) -> None:
        self.sets.put_nowait(RuntimeError("internal error"))


class Site:
    """A gateway with its queue and its scaler; `capacity` is what the stages report."""

    def __init__(self, listen: str = "127.0.0.1:0", **settings: float) -> None:
        config = gateway_config(scaler_listen=listen, max_waiting=3, reconnect_s=0.1, **settings)
        stages = {role: StageConfig(slots=slots) for role, slots in SLOTS.items()}
        self.admission = Admission(config, Metrics(in_flight=lambda: 0))
        self.found = Told()
        self.capacity: dict[str, Capacity] = {}
        self.changes = ChangeSignal()
        self.scaler = Scaler(
            Deployment(stages=stages, gateway=config),
            self.admission,
            self.found,
            lambda: self.capacity,
            self.changes,
        )
        self._places = ExitStack()

    async def __aenter__(self) -> Site:
        await self.scaler.__aenter__()
        return self

    async def __aexit__(self, *unused: object) -> None:
        self._places.close()
        await self.scaler.__aexit__(None, None, None)

    @property
    def address(self) -> str:
        return self.scaler.address

    def asks(self, wish: AdmissionRequest) -> None:
        """A request asks for a place, and keeps it."""
        self._places.enter_context(self.admission.place(wish, HERE))

    def leave(self) -> None:
        self._places.close()

    async def until(self, holds: Callable[[], bool]) -> None:
        while True:
            changed = self.changes.next
            if holds():
                return
            await changed.wait()

    async def until_told_by(self, *addresses: str) -> None:
        await self.until(lambda: self.scaler.peers.told_by == set(addresses))

    async def until_demand(self, role: str, slots: float) -> None:
        await self.until(lambda: self.scaler.demand(role) == slots)


def meet(*sites: Site) -> None:
    """Each finds all of them, itself as well."""
    for site in sites:
        site.found.tell(*(each.address for each in sites))


class Other(demand_pb2_grpc.DemandServiceServicer):
    """A gateway that says once what it wants, seven talkers, at as many addresses as are asked for;
    `asked` and `left` count its streams."""

    def __init__(self, boot_id: str) -> None:
        self.boot_id = boot_id
        self.asked, self.left = asyncio.Semaphore(0), asyncio.Semaphore(0)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        demand_pb2_grpc.add_DemandServiceServicer_to_server(self, self._server)

    async def __aenter__(self) -> Other:
        self.addresses = [
            f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}" for _ in range(2)
        ]
        await self._server.start()
        return self

    async def __aexit__(self, *unused: object) -> None:
        await self._server.stop(None)

    async def WatchDemand(self, request: object, context: object) -> AsyncIterator[object]:
        self.asked.release()
        try:
            roles = {"talker": demand_pb2.RoleDemand(waiting=7)}
            yield demand_pb2.GatewayDemand(boot_id=self.boot_id, roles=roles)
            await asyncio.Event().wait()
        finally:
            self.left.release()
