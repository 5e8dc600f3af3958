"""Whether a stage serves: the one owner, which tells gRPC's health service.

It serves when it was told to, and no source has a fault: the processes of a detached
engine, or the watch on the engine's steps.
"""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health, health_pb2

from antiphon.errors import AntiphonError
from antiphon.runtime.engine import DetachedEngine, Engine
from antiphon.v1 import stage_pb2

SERVICE_NAME = stage_pb2.DESCRIPTOR.services_by_name["StageService"].full_name


class Health:
    """Not serving until told otherwise. Belongs to the event loop."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()
        self.serving = False
        self._told = False
        self._faults: dict[str, AntiphonError] = {}
        self._closed = False
        self._telling: set[asyncio.Task[None]] = set()

    async def tell(self, *, serving: bool) -> None:
        """The stage serves from now on unless something has a fault, or does not."""
        self._told = serving
        await self._update()

    async def _update(self) -> None:
        self.serving = serving = self._told and not self._faults
        response = health_pb2.HealthCheckResponse
        status = response.SERVING if serving else response.NOT_SERVING
        await self.servicer.set("", status)
        await self.servicer.set(SERVICE_NAME, status)

    async def close(self) -> None:
        """The stage stops: it serves no more, whatever its engine does."""
        self._closed = True
        await self.tell(serving=False)

    def note(self, source: str, fault: AntiphonError | None) -> None:
        """A source of faults has this one now, or None."""
        self._faults.pop(source, None)
        if fault is not None:
            self._faults[source] = fault
        if not self._closed:
            task = asyncio.get_running_loop().create_task(self._update())
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    def follow(self, engine: Engine) -> None:
        """Not serving while an engine with processes of its own is down."""
        if not isinstance(engine, DetachedEngine):
            return
        loop = asyncio.get_running_loop()

        def changed(fault: AntiphonError | None) -> None:
            loop.call_soon_threadsafe(self.note, "processes", fault)

        engine.watch(changed)
