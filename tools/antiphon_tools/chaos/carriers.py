"""Finds the replicas that generate the current answers and reads the gateway's failover metrics."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc

from antiphon.v1 import stage_pb2
from antiphon.wire.stubs import stage_stub
from antiphon_tools.chaos.fleet import TargetFleet
from antiphon_tools.launcher.plan import role_of

TOLD_WITHIN_S = 1.0
_CONTINUED = re.compile(r'failovers_total\{outcome="continued",stage="\w+"\} (\S+)')
_SECONDS = re.compile(r"failover_seconds_sum (\S+)")


@dataclass(frozen=True, slots=True)
class Failovers:
    """The number of answers that continued on another replica and the total time that this took."""

    continued: float
    seconds: float

    def since(self, before: Failovers) -> Failovers:
        """Return the difference from an earlier state."""
        return Failovers(self.continued - before.continued, self.seconds - before.seconds)


async def failovers(fleet: TargetFleet) -> Failovers:
    """Read the metrics of the deployment's gateway."""
    text = await asyncio.to_thread(_page, f"{fleet.running.http_url}/metrics")
    return Failovers(
        sum(map(float, _CONTINUED.findall(text))), sum(map(float, _SECONDS.findall(text)))
    )


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as page:
        content: bytes = page.read()
    return content.decode()


class Carriers:
    """Queries which stages have an open segment."""

    def __init__(self, channels: dict[str, grpc.aio.Channel]) -> None:
        self._channels = channels

    async def now(self) -> frozenset[str]:
        """Return the names of all replicas that have an open segment."""
        names = list(self._channels)
        busy = await asyncio.gather(*map(self._has_segment, names))
        return frozenset(name for name, has in zip(names, busy, strict=True) if has)

    async def of(self, role: str) -> list[str]:
        """Return the sorted names of one stage's replicas that have an open segment."""
        return sorted(name for name in await self.now() if role_of(name) == role)

    async def _has_segment(self, name: str) -> bool:
        try:
            told = await stage_stub(self._channels[name]).Describe(
                stage_pb2.DescribeRequest(), timeout=TOLD_WITHIN_S
            )
        except grpc.aio.AioRpcError:
            return False
        return told.open_segments > 0


@asynccontextmanager
async def carriers_of(fleet: TargetFleet) -> AsyncIterator[Carriers]:
    """Connect to all stages. The connections are reestablished when a stage is restarted."""
    # If a connection is refused while a stage is down, retry quickly once the stage is available
    # again.
    options = [("grpc.min_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100)]
    async with AsyncExitStack() as stack:
        yield Carriers(
            {
                name: await stack.enter_async_context(
                    grpc.aio.insecure_channel(fleet.running.processes[name].address, options)
                )
                for name in fleet.stages
            }
        )
