"""Whether a stage serves: told by its engine's fate until it stops, and shown as a series."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from grpc_health.v1 import health_pb2

from antiphon.errors import AntiphonError, Unavailable
from antiphon.runtime.server.health import SERVICE_NAME, Health
from antiphon.runtime.server.metrics import StageMetrics

Changed = Callable[[AntiphonError | None], None]
Status = health_pb2.HealthCheckResponse


class Detached:
    """An engine of which only the fate is of interest."""

    def __init__(self) -> None:
        self.changed: Changed | None = None

    def watch(self, changed: Changed) -> None:
        self.changed = changed

    def _unused(self, *arguments: object) -> None:
        raise AssertionError("only watched")

    admit = accept = awaited_edge = step = release = interrupt = close = _unused


async def told(health: Health) -> set[int]:
    """What gRPC is told, by all names."""
    requests = [health_pb2.HealthCheckRequest(service=name) for name in ("", SERVICE_NAME)]
    return {(await health.servicer.Check(each, None)).status for each in requests}


async def shown(metrics: StageMetrics) -> list[tuple[str, float]]:
    families = await asyncio.to_thread(metrics.collect)
    return [(each.name, each.value) for family in families for each in family.samples]


async def change(engine: Detached, fault: AntiphonError | None) -> None:
    """The engine tells on a thread of its own; what comes of it has been done then."""
    assert engine.changed is not None
    await asyncio.to_thread(engine.changed, fault)
    # The call was queued before this coroutine's; its task runs at the loop's next turns.
    for _ in range(5):
        await asyncio.sleep(0)


async def test_health_follows_the_engine_until_the_stage_stops() -> None:
    health, engine = Health(), Detached()
    metrics = StageMetrics("thinker", "cpu", lambda: health.serving)
    await health.tell(serving=False)
    assert await shown(metrics) == [("antiphon_stage_ready", 0)]
    await health.tell(serving=True)
    health.follow(engine)  # type: ignore[arg-type]
    assert await shown(metrics) == [("antiphon_stage_ready", 1)]
    await change(engine, Unavailable("its process died"))
    assert await told(health) == {Status.NOT_SERVING}
    assert await shown(metrics) == [("antiphon_stage_ready", 0)]
    await change(engine, None)
    assert await told(health) == {Status.SERVING}
    assert await shown(metrics) == [("antiphon_stage_ready", 1)]
    await health.close()
    await change(engine, None)
    assert await told(health) == {Status.NOT_SERVING}
    assert not health.serving


async def test_collecting_fails_when_the_loop_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop is held up by the collecting itself, as by anything that blocks it."""
    monkeypatch.setattr("antiphon.runtime.server.metrics.READ_TIMEOUT_S", 0.01)
    with pytest.raises(TimeoutError):
        StageMetrics("thinker", "cpu", lambda: True).collect()
    await asyncio.sleep(0)
