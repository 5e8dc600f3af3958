"""Readiness and liveness of a stage.

A stage is ready once it has been set to serving, as long as no source reports a fault. Sources are
the processes of a detached engine and the steps of the engine. A stage is alive unless it has a
fault that can't go away on its own. Other processes check readiness through the health service on
the stage's main port. The health service on the separate health port answers an orchestrator's
probes, under the service names `READY` and `ALIVE`.
"""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health, health_pb2

from antiphon.errors import AntiphonError
from antiphon.runtime.engine import DetachedEngine, Engine
from antiphon.v1 import stage_pb2

SERVICE_NAME = stage_pb2.DESCRIPTOR.services_by_name["StageService"].full_name

READY = "ready"
"""The name of the readiness probe on the health port, which succeeds if the stage is accepting
sessions.
"""

ALIVE = "alive"
"""The name of the liveness probe on the health port, which fails only if the process needs a
restart.

It keeps succeeding while the model is loading, while vLLM restarts, and while the stage drains.
"""

Status = health_pb2.HealthCheckResponse


class Health:
    """The health of a stage. A stage is alive from the start and becomes ready when `tell` is
    called. Must be used on the event loop.
    """

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
        """Set whether the stage is serving. The stage is reported as ready only if it is serving
        and no source has a fault.
        """
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
        """Report that the stage has stopped serving because it is shutting down."""
        await self.tell(serving=False)

    def note(self, source: str, fault: AntiphonError | None, *, passes: bool = True) -> None:
        """Set or clear the fault of one source. Set `passes` to false if the fault is permanent, so
        that the liveness probe fails.
        """
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
        """Report a fault for as long as a detached engine is down.

        The fault counts as temporary, because the engine recovers on its own, unless it went down
        with an error that is not retryable.
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
