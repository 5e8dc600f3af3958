"""Whether a stage serves: told by its engine's fate until it stops, and shown as a series."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from antiphon.errors import AntiphonError, Internal, InvalidArgument, Unavailable
from antiphon.runtime.server.health import ALIVE, READY, SERVICE_NAME, Health
from antiphon.runtime.server.health_endpoint import health_endpoint
from antiphon.runtime.server.metrics import StageMetrics

Changed = Callable[[AntiphonError | None], None]
Status = health_pb2.HealthCheckResponse
GENEROUS_S = 120.0


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


async def probed(channel: grpc.aio.Channel) -> tuple[bool, bool]:
    """What an orchestrator hears: whether it is ready, and whether it is alive."""
    stub = health_pb2_grpc.HealthStub(channel)
    unnamed, ready, alive = [
        (await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=GENEROUS_S)).status
        == Status.SERVING
        for name in ("", READY, ALIVE)
    ]
    assert unnamed == ready
    return ready, alive


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


async def test_probes_hear_whether_it_is_ready_and_whether_waiting_may_help() -> None:
    health, engine = Health(), Detached()
    await health.tell(serving=False)
    async with (
        health_endpoint("127.0.0.1:0", health.probes) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        assert await probed(channel) == (False, True), "it loads"
        await health.tell(serving=True)
        health.follow(engine)  # type: ignore[arg-type]
        assert await probed(channel) == (True, True)
        await change(engine, Unavailable("its process died and is being restarted"))
        assert await probed(channel) == (False, True), "restarting vLLM"
        await change(engine, None)
        assert await probed(channel) == (True, True)
        await change(engine, Internal("the supervising thread failed"))
        assert await probed(channel) == (False, False), "nobody starts it again"
        await change(engine, None)
        await health.close()
        assert await probed(channel) == (False, True), "it stops, and drains"


@pytest.mark.parametrize("listen", ["8080", "127.0.0.1:http"])
async def test_a_health_port_that_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(InvalidArgument, match="health_listen"):
        async with health_endpoint(listen, Health().probes):
            pass


async def test_a_health_port_that_is_taken_is_named() -> None:
    async with health_endpoint("127.0.0.1:0", Health().probes) as address:
        with pytest.raises(Unavailable, match="health_listen") as caught:
            async with health_endpoint(address, Health().probes):
                pass
    assert caught.value.field == "health_listen"


async def test_collecting_fails_when_the_loop_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop is held up by the collecting itself, as by anything that blocks it."""
    monkeypatch.setattr("antiphon.runtime.server.metrics.READ_TIMEOUT_S", 0.01)
    with pytest.raises(TimeoutError):
        StageMetrics("thinker", "cpu", lambda: True).collect()
    await asyncio.sleep(0)
