"""The deployment under test, with its processes and the resources that they use when idle."""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import msgspec

from antiphon.deployment.schema import Deployment, DiscoveryConfig, StageConfig
from antiphon.pipelines.registry import pipeline_for
from antiphon.v1 import stage_pb2
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.cut_wire import CutWire
from antiphon_testkit.gateway_settings import gateway_config
from antiphon_tools.chaos.faults import Victim
from antiphon_tools.chaos.registry import NAMESPACE, ReplicaRegistry, replica_registry
from antiphon_tools.launcher.events import LaunchEvent, Loaded, Report
from antiphon_tools.launcher.launcher import Launcher, Running
from antiphon_tools.launcher.plan import GATEWAY, role_of

MOST_DESCRIPTORS_MORE = 16
"""The permitted increase in open descriptors since the start. It isn't zero because connections to
restarted processes come and go.
"""
RECOVERY_S = 120.0
REST_S = 15.0
LOOK_S = 0.1
RELIST_S = 5.0
"""The interval, in seconds, after which the gateway lists the replicas again.

If a watch stops reporting changes, this limits how long answers are affected.
"""


@dataclass
class TargetFleet:
    """A running deployment with several replicas of each stage."""

    running: Running
    replicas: int
    loaded: asyncio.Queue[str]
    registry: ReplicaRegistry
    descriptors: dict[str, int] = field(default_factory=dict)
    # The most recent health report of the gateway.
    health: Mapping[str, Any] = field(default_factory=dict)

    @property
    def wires(self) -> Mapping[str, CutWire]:
        """The connection to each stage process, by name."""
        return self.registry.wires

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of all stage processes."""
        return tuple(name for name in self.running.processes if name != GATEWAY)

    def pid(self, name: str) -> int:
        """Return the current process ID of a service."""
        return self.running.processes[name].pid

    def victim(self, name: str, chance: random.Random) -> Victim:
        """Return the service with this name as a target for faults."""
        # Nothing happens to the gateway's own connection, because listeners connect to it directly.
        wire = self.wires.get(name) or CutWire(self.running.grpc_address)
        drawn = random.Random(chance.getrandbits(32))
        move_unseen = partial(self.registry.move_unseen, name, drawn)
        return Victim(self.pid(name), wire, drawn, move_unseen)

    async def links(self) -> dict[str, Sequence[stage_pb2.LinkState]]:
        """Return the state of the links of each stage process that answers."""
        states = await asyncio.gather(*map(self._links_of, self.stages))
        return dict(zip(self.stages, states, strict=True))

    async def _links_of(self, name: str) -> Sequence[stage_pb2.LinkState]:
        address = self.running.processes[name].address
        async with grpc.aio.insecure_channel(address) as channel:
            try:
                told = await stage_stub(channel).Describe(
                    stage_pb2.DescribeRequest(), timeout=REST_S
                )
            except grpc.aio.AioRpcError:
                return []
        return told.links

    async def recovered(self, killed: str | None) -> None:
        """Wait until a killed service is ready again and the gateway uses all replicas.

        Raises `TimeoutError` with the gateway's report on the replicas.
        """
        try:
            async with asyncio.timeout(RECOVERY_S):
                while killed is not None and await self.loaded.get() != killed:
                    pass
                await self._all_serving()
        except TimeoutError:
            raise TimeoutError(f"health: {self.health}") from None

    async def _all_serving(self) -> None:
        """Wait until the gateway uses every replica. This requires polling."""
        while True:
            if await asyncio.to_thread(self._all_serve):
                return
            await asyncio.sleep(LOOK_S)

    def _all_serve(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.running.http_url}/health", timeout=5) as answer:
                self.health = json.load(answer)
        except urllib.error.HTTPError as unready:
            self.health = json.load(unready)
            return False
        except OSError as error:
            self.health = {"gateway": str(error)}
            return False
        # The gateway does not report a count for stages with a single replica.
        return all(
            stage["ready"] and stage.get("serving", 1) == self.replicas
            for stage in self.health["stages"].values()
        )

    async def at_rest(self) -> list[str]:
        """Return the resources that are still in use while there are no requests.

        The result is empty if there is no leak.
        """
        held = await asyncio.gather(*(self._left_in(name) for name in self.stages))
        return [each for each in (*held, *await self._descriptors_left()) if each]

    async def _left_in(self, name: str) -> str:
        """Return the resources that a stage still uses after a grace period."""
        load = stage_pb2.StageLoad()
        try:
            async with (
                asyncio.timeout(REST_S),
                grpc.aio.insecure_channel(self.running.processes[name].address) as channel,
            ):
                watching = stage_stub(channel).WatchLoad(stage_pb2.WatchLoadRequest())
                async for load in watching:
                    if not (load.open_sessions or load.open_segments):
                        return ""
        except TimeoutError:
            return (
                f"{name} still has {load.open_sessions} open sessions and {load.open_segments} "
                "open segments"
            )
        except grpc.aio.AioRpcError as error:
            return f"can't get the load of {name}: {error.details()}"
        return f"{name} closed its load stream"

    async def _descriptors_left(self) -> list[str]:
        """Return the processes that still have too many open descriptors after a grace period.

        A process's limit is based on the number of descriptors that processes of the same type had
        open after all of them had answered for the first time. Descriptors can stay open for some
        time, because an interrupted link is kept until it can no longer be recovered.
        """
        opened = self._opened()
        if not self.descriptors:
            for name, kinds in opened.items():
                role = role_of(name)
                self.descriptors[role] = max(kinds.total(), self.descriptors.get(role, 0))
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + REST_S
        while (left := self._too_many(opened)) and loop.time() < give_up_at:
            await asyncio.sleep(LOOK_S)
            opened = self._opened()
        return left

    def _opened(self) -> Mapping[str, Counter[str]]:
        """Count the open descriptors of each process by type."""
        return {
            name: _kinds_of(Path("/proc", str(process.pid), "fd"))
            for name, process in self.running.processes.items()
        }

    def _too_many(self, opened: Mapping[str, Counter[str]]) -> list[str]:
        found = []
        for name, kinds in opened.items():
            before = self.descriptors[role_of(name)]
            if kinds.total() > before + MOST_DESCRIPTORS_MORE:
                told = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
                found.append(
                    f"{name} has {kinds.total()} open file descriptors ({told}), but had "
                    f"{before} at the start"
                )
        return found


def _kinds_of(descriptors: Path) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for each in descriptors.iterdir():
        # The descriptor may have been closed in the meantime.
        with suppress(FileNotFoundError):
            target = os.readlink(each)
            kinds[target if target.startswith("/dev/") else target.partition(":")[0]] += 1
    return kinds


@asynccontextmanager
async def running_fleet(
    model: Path,
    replicas: int,
    directory: Path,
    launcher: type[Launcher] = Launcher,
    tell: Report = lambda event: None,
    stage: StageConfig | None = None,
    pipeline: str = "",
    **settings: Any,
) -> AsyncIterator[TargetFleet]:
    """Run replicas of each stage as processes, which are restarted when they end.

    `directory` receives files of the gateway. `tell` is called with process events and output.
    Answers are only computed one second ahead of playback, so that a fault interrupts them. The
    gateway `settings` can override this. `stage` contains the settings of all stages. If `pipeline`
    is empty, the checkpoint determines it.
    """
    loaded: asyncio.Queue[str] = asyncio.Queue()
    resume_key, kubeconfig = directory / "resume-key", directory / "kubeconfig"
    await asyncio.to_thread(resume_key.write_text, secrets.token_hex())

    def report(event: LaunchEvent) -> None:
        tell(event)
        if isinstance(event, Loaded):
            loaded.put_nowait(event.service)

    roles = pipeline_for(model, pipeline).roles
    chosen: dict[str, Any] = {
        "discovery": DiscoveryConfig(
            kind="kubernetes",
            namespace=NAMESPACE,
            services={role: role for role in roles},
            kubeconfig=str(kubeconfig),
            relist_s=RELIST_S,
        ),
        # A restarted gateway continues the conversations of the previous one.
        "resume_key_file": str(resume_key),
        "max_ahead_seconds": 1.0,
        "max_stage_ahead_seconds": 0.5,
        "failovers_per_minute": 1 << 16,
        "eject_failures": 1 << 16,
        **settings,
    }
    gateway = gateway_config(http_listen="127.0.0.1:0", grpc_listen="127.0.0.1:0", **chosen)
    config = msgspec.structs.replace(stage or StageConfig(), replicas=replicas)
    stages = dict.fromkeys(roles, config)
    deployment = Deployment(model=str(model), pipeline=pipeline, stages=stages, gateway=gateway)
    async with (
        replica_registry(kubeconfig) as registry,
        launcher(deployment, on_exit="restart", report=report, reached_at=registry.add) as running,
    ):
        while not loaded.empty():
            loaded.get_nowait()
        fleet = TargetFleet(running, replicas, loaded, registry)
        await fleet.recovered(None)
        yield fleet
