"""Whether a stage serves, and whether its process can go on: the one owner of both.

It serves when it was told to, and no source has a fault: the processes of a detached
engine, or what is known of the engine's steps. It is alive as long as each fault may pass.
gRPC's health service at the stage's own port tells peers whether it serves; that of the
health port answers by name, for an orchestrator's probes: see `READY` and `ALIVE`.
"""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health, health_pb2

from antiphon.errors import AntiphonError
from antiphon.runtime.engine import DetachedEngine, Engine
from antiphon.v1 import stage_pb2

SERVICE_NAME = stage_pb2.DESCRIPTOR.services_by_name["StageService"].full_name

READY = "ready"
"""Name at the health port: whether the stage takes sessions."""

ALIVE = "alive"
"""Name at the health port: whether waiting may help, and the process need not be started again.

So it is while the model loads, while vLLM is started again, and while a stopping stage drains."""

Status = health_pb2.HealthCheckResponse


class Health:
    """Alive, and not serving until told otherwise. Belongs to the event loop."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()
        self.probes = health.aio.HealthServicer()
        self.serving = False
        self.alive = True
        self._told = False
        self._faults: dict[str, AntiphonError] = {}
        self._for_good: set[str] = set()
        self._telling: set[asyncio.Task[None]] = set()

    async def tell(self, *, serving: bool) -> None:
        """The stage serves from now on unless something has a fault, or does not."""
        self._told = serving
        await self._update()

    async def _update(self) -> None:
        self.serving = serving = self._told and not self._faults
        self.alive = alive = not self._for_good
        for name in ("", SERVICE_NAME):
            await self.servicer.set(name, _status(serving))
        for name in ("", READY):
            await self.probes.set(name, _status(serving))
        await self.probes.set(ALIVE, _status(alive))

    async def close(self) -> None:
        """The stage stops: it serves no more, whatever its engine does."""
        await self.tell(serving=False)

    def note(self, source: str, fault: AntiphonError | None, *, passes: bool = True) -> None:
        """A source of faults has this one now, or None; one that never `passes` is the end."""
        self._faults.pop(source, None)
        self._for_good.discard(source)
        if fault is not None:
            self._faults[source] = fault
            if not passes:
                self._for_good.add(source)
        task = asyncio.get_running_loop().create_task(self._update())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def follow(self, engine: Engine) -> None:
        """Not serving while an engine with processes of its own is down.

        It comes back by itself, unless it went down with an error that is not retryable.
        """
        if not isinstance(engine, DetachedEngine):
            return
        loop = asyncio.get_running_loop()

        def changed(fault: AntiphonError | None) -> None:
            loop.call_soon_threadsafe(self._note_processes, fault)

        engine.watch(changed)

    def _note_processes(self, fault: AntiphonError | None) -> None:
        self.note("processes", fault, passes=fault is None or fault.retryable)


def _status(good: bool) -> int:
    return Status.SERVING if good else Status.NOT_SERVING
