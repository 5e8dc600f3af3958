"""The deployment under test: its processes, and the resources that they hold without requests."""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from antiphon.deployment.schema import Deployment, DiscoveryConfig, StageConfig
from antiphon.pipelines.registry import pipeline_of
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
"""Than at the start: connections to who was started again come and go."""
RECOVERY_S = 120.0
REST_S = 15.0
LOOK_S = 0.1
RELIST_S = 5.0
"""By then a watch that is silent for ever has cost something, and no longer."""


@dataclass
class TargetFleet:
    """A running deployment with several replicas of each stage."""

    running: Running
    replicas: int
    loaded: asyncio.Queue[str]
    registry: ReplicaRegistry
    descriptors: dict[str, int] = field(default_factory=dict)
    # What the gateway said last of its stages.
    health: Mapping[str, Any] = field(default_factory=dict)

    @property
    def wires(self) -> Mapping[str, CutWire]:
        """What leads to each process of a stage."""
        return self.registry.wires

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of all processes of stages."""
        return tuple(name for name in self.running.processes if name != GATEWAY)

    def pid(self, name: str) -> int:
        """Of a service's process now."""
        return self.running.processes[name].pid

    def victim(self, name: str, chance: random.Random) -> Victim:
        """A service as something can happen to it."""
        # Nothing happens to the wire of the gateway: it is the listeners' own.
        wire = self.wires.get(name) or CutWire(self.running.grpc_address)
        drawn = random.Random(chance.getrandbits(32))
        move_unseen = partial(self.registry.move_unseen, name, drawn)
        return Victim(self.pid(name), wire, drawn, move_unseen)

    async def recovered(self, killed: str | None) -> None:
        """Return when a killed service is ready again, and the gateway has all replicas.

        Raises `TimeoutError` with the gateway's description of the replicas.
        """
        try:
            async with asyncio.timeout(RECOVERY_S):
                while killed is not None and await self.loaded.get() != killed:
                    pass
                await self._all_serving()
        except TimeoutError:
            raise TimeoutError(f"health: {self.health}") from None

    async def _all_serving(self) -> None:
        """Return when the gateway has every replica; it has to be asked for that."""
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
        # A stage of one replica is not counted.
        return all(
            stage["ready"] and stage.get("serving", 1) == self.replicas
            for stage in self.health["stages"].values()
        )

    async def at_rest(self) -> list[str]:
        """Return the resources that are still held without requests; empty if there is no leak."""
        held = await asyncio.gather(*(self._left_in(name) for name in self.stages))
        return [each for each in (*held, *await self._descriptors_left()) if each]

    async def _left_in(self, name: str) -> str:
        """What a stage still has after a while."""
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
            return f"{name} holds {load.open_sessions} sessions, {load.open_segments} segments"
        except grpc.aio.AioRpcError as error:
            return f"{name} cannot be asked for its load: {error.details()}"
        return f"{name} ended the stream of its load"

    async def _descriptors_left(self) -> list[str]:
        """Who has more open than any of its kind had when all had answered for the first time, and
        still has after a while: a link that broke is kept until it can no longer heal."""
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
        """What each process has open, by kind."""
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
                    f"{name} has {kinds.total()} descriptors open ({told}), {before} at first"
                )
        return found


def _kinds_of(descriptors: Path) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for each in descriptors.iterdir():
        # It may be closed meanwhile.
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
    **settings: Any,
) -> AsyncIterator[TargetFleet]:
    """Run replicas of each stage as processes, which are restarted when they end.

    `directory` receives files of the gateway. `tell` is called with changes of the processes and
    with their output. Answers are computed only a second ahead of playback, so that a fault
    interrupts them, unless `settings` of the gateway override it.
    """
    loaded: asyncio.Queue[str] = asyncio.Queue()
    resume_key, kubeconfig = directory / "resume-key", directory / "kubeconfig"
    await asyncio.to_thread(resume_key.write_text, secrets.token_hex())

    def report(event: LaunchEvent) -> None:
        tell(event)
        if isinstance(event, Loaded):
            loaded.put_nowait(event.service)

    roles = pipeline_of(model).roles
    chosen: dict[str, Any] = {
        "discovery": DiscoveryConfig(
            kind="kubernetes",
            namespace=NAMESPACE,
            services={role: role for role in roles},
            kubeconfig=str(kubeconfig),
            relist_s=RELIST_S,
        ),
        # A gateway that is started again goes on with the conversations of the one before it.
        "resume_key_file": str(resume_key),
        "max_ahead_seconds": 1.0,
        "max_stage_ahead_seconds": 0.5,
        "failovers_per_minute": 1 << 16,
        "eject_failures": 1 << 16,
        **settings,
    }
    gateway = gateway_config(http_listen="127.0.0.1:0", grpc_listen="127.0.0.1:0", **chosen)
    stages = dict.fromkeys(roles, StageConfig(replicas=replicas))
    deployment = Deployment(model=str(model), stages=stages, gateway=gateway)
    async with (
        replica_registry(kubeconfig) as registry,
        launcher(deployment, on_exit="restart", report=report, reached_at=registry.add) as running,
    ):
        while not loaded.empty():
            loaded.get_nowait()
        fleet = TargetFleet(running, replicas, loaded, registry)
        await fleet.recovered(None)
        yield fleet
