"""Readiness and liveness of a stage.

A stage is ready if it has been set to serving and no source reports a fault. The sources are the
processes of a detached engine and the steps of the engine. A stage is alive as long as all of its
faults may be temporary. The health service on the stage's port reports readiness to other
processes. The one on the health port answers the probes of an orchestrator, under the service names
`READY` and `ALIVE`.
"""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health, health_pb2

from antiphon.errors import AntiphonError
from antiphon.runtime.engine import DetachedEngine, Engine
from antiphon.v1 import stage_pb2

SERVICE_NAME = stage_pb2.DESCRIPTOR.services_by_name["StageService"].full_name

READY = "ready"
"""The readiness probe on the health port. It succeeds if the stage accepts sessions."""

ALIVE = "alive"
"""The liveness probe on the health port. It only fails if the process has to be restarted.

It succeeds while the model is loading, while vLLM is restarting, and while the stage is draining.
"""

Status = health_pb2.HealthCheckResponse


class Health:
    """The health of a stage. It is alive from the start, and ready after a call to `tell`. Use it
    on the event loop.
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
        """Set whether the stage is serving. It is only reported as ready if no source has a
        fault.
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
        """Report that the stage is no longer serving, because it is shutting down."""
        await self.tell(serving=False)

    def note(self, source: str, fault: AntiphonError | None, *, passes: bool = True) -> None:
        """Set or clear the fault of a source. Set `passes` to false if the fault is permanent,
        which makes the liveness probe fail.
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
        """Report a fault while a detached engine is down.

        The engine recovers on its own, unless it went down with an error that is not retryable.
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
