"""One rendered pod as a process on an address of its own: probes, preStop, SIGTERM, SIGKILL.

It does what a kubelet does, in its order. Seconds that nobody waits for on purpose (between two
probes, in preStop) are multiplied by `pace`; the grace period is as it is rendered.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

Json = dict[str, Any]
PROBE_CONNECT_S = 5.0


@dataclass(frozen=True)
class Program:
    """What a pod's container runs here, and where it writes what it says."""

    command: Sequence[str]
    environment: Mapping[str, str]
    said: Path


class PodProcess:
    """A pod with one container. `tell` gets each thing that happens, in words.

    Whoever starts `run` awaits it: it returns when the pod has ended, after `stop`.
    """

    def __init__(
        self,
        name: str,
        address: str,
        spec: Json,
        program: Program,
        *,
        pace: float,
        tell: Callable[[PodProcess, str], None],
    ) -> None:
        (self._container,) = spec["containers"]
        self._grace_s = float(spec["terminationGracePeriodSeconds"])
        self._program = program
        self._pace = pace
        self._tell = tell
        self._stopping = asyncio.Event()
        self.name = name
        self.uid = f"uid-of-{name}"
        self.address = address
        self.ready = False
        self.terminating = False

    @property
    def in_service(self) -> bool:
        """Whether its Service sends new connections to it."""
        return self.ready and not self.terminating

    def stop(self) -> None:
        """Delete the pod: it leaves its service at once, its process when it has been told."""
        self.terminating = True
        self._tell(self, "terminating")
        self._stopping.set()

    async def run(self) -> None:
        """Keep the container running until the pod is deleted, and then end it."""
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not self.terminating:
                await self._live(stopping)
                self._turn(ready=False)
        finally:
            stopping.cancel()
            self._tell(self, "gone")

    async def _live(self, stopping: asyncio.Task[bool]) -> None:
        """One life of the container."""
        with self._program.said.open("ab") as said:
            process = await asyncio.create_subprocess_exec(
                *self._program.command,
                env=dict(self._program.environment),
                stdout=said,
                stderr=said,
            )
        self._tell(self, "started")
        ended = asyncio.create_task(process.wait())
        alive = asyncio.create_task(self._watch_over())
        try:
            await asyncio.wait({ended, alive, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                self._tell(self, f"died with {process.returncode}")
            elif self.terminating:
                await self._end(process, ended)
            else:
                self._tell(self, "not alive")
                await self._end(process, ended)
        finally:
            alive.cancel()
            if process.returncode is None:
                process.kill()
            await asyncio.gather(ended, alive, return_exceptions=True)

    async def _end(self, process: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
        """PreStop, SIGTERM, and SIGKILL when the grace period, which has both, is over."""
        loop = asyncio.get_running_loop()
        kill_at = loop.time() + self._grace_s
        hook = self._container.get("lifecycle", {}).get("preStop", {})
        if "sleep" in hook:
            await asyncio.wait({ended}, timeout=hook["sleep"]["seconds"] * self._pace)
        if not ended.done():
            self._tell(self, "SIGTERM")
            process.send_signal(signal.SIGTERM)
        await asyncio.wait({ended}, timeout=kill_at - loop.time())
        if not ended.done():
            self._tell(self, "SIGKILL")
            process.kill()
        self._tell(self, f"ended with {await ended}")

    async def _watch_over(self) -> None:
        """Drive the probes; returns when the container is to be started again."""
        probes = {kind: self._container.get(f"{kind}Probe") for kind in ("startup", "liveness")}
        if probes["startup"] and not await self._passes(probes["startup"]):
            return
        self._tell(self, "started up")
        watching = [asyncio.create_task(self._watch_readiness())]
        if probes["liveness"]:
            watching.append(asyncio.create_task(self._fails(probes["liveness"])))
        try:
            await watching[-1]
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _passes(self, probe: Json) -> bool:
        """Whether it passes before it has failed too often."""
        for _ in range(probe.get("failureThreshold", 3)):
            if await self._probe(probe):
                return True
            await asyncio.sleep(probe.get("periodSeconds", 10) * self._pace)
        return False

    async def _fails(self, probe: Json) -> None:
        """Return when it has failed so often in a row that this counts."""
        failed = 0
        while failed < probe.get("failureThreshold", 3):
            await asyncio.sleep(probe.get("periodSeconds", 10) * self._pace)
            failed = 0 if await self._probe(probe) else failed + 1

    async def _watch_readiness(self) -> None:
        probe = self._container.get("readinessProbe")
        while probe:
            if await self._probe(probe):
                self._turn(ready=True)
                await self._fails(probe)
                self._turn(ready=False)
            else:
                await asyncio.sleep(probe.get("periodSeconds", 10) * self._pace)
        self._turn(ready=True)
        await asyncio.Event().wait()

    def _turn(self, *, ready: bool) -> None:
        if ready != self.ready:
            self.ready = ready
            self._tell(self, "ready" if ready else "not ready")

    async def _probe(self, probe: Json) -> bool:
        timeout_s = max(float(probe.get("timeoutSeconds", 1)), PROBE_CONNECT_S)
        with contextlib.suppress(OSError, TimeoutError, grpc.aio.AioRpcError):
            async with asyncio.timeout(timeout_s):
                if "grpc" in probe:
                    return await self._serves(probe["grpc"])
                if "tcpSocket" in probe:
                    return await self._answers(probe["tcpSocket"]["port"], b"")
                asked = probe["httpGet"]
                line = f"GET {asked['path']} HTTP/1.1\r\nhost: {self.address}\r\n\r\n"
                return await self._answers(asked["port"], line.encode())
        return False

    async def _serves(self, asked: Json) -> bool:
        """The answer of gRPC's health service to this name."""
        target = f"{self.address}:{asked['port']}"
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            answer = await check(health_pb2.HealthCheckRequest(service=asked.get("service", "")))
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def _answers(self, port: int, request: bytes) -> bool:
        """Whether it takes a connection and, where something is asked, answers with a success."""
        reader, writer = await asyncio.open_connection(self.address, port)
        try:
            if not request:
                return True
            writer.write(request)
            status = (await reader.readline()).split(b" ", 2)
            return len(status) > 1 and status[1][:1] in {b"2", b"3"}
        finally:
            writer.transport.abort()
