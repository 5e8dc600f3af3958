"""Monitors one stage process and updates its state in the gateway.

Three signals determine whether the process is serving:

* The health stream, on which the stage reports whether it is SERVING.
* The connection. gRPC's keepalive pings detect a stopped or lost process
  (`antiphon.transport.channel`) and end its streams.
* Probes, which are unary health checks. The gateway probes a stage that has not reported its load
  for `probe_interval_s`.

A process with a blocked event loop or interpreter still answers pings, but it sends no reports and
answers no probe. Load reports do not prove that messages reach the stage, so a stage that sends
reports is probed as well, but rarely.

If a stage neither answers a probe nor sends anything else for `probe_timeout_s`, it receives no new
requests. If the silence lasts for the same time again, its running requests end. The connection is
then closed, because it may be the cause. This rule is implemented in
`antiphon_gateway.fleet.failure_detector`. A health stream that is silent, or that contradicts two
consecutive probes, is opened again. If the connection is replaced for another reason, the watch
moves to the new one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable

import grpc
from grpc_health.v1 import health_pb2

from antiphon.deadlines.awake_deadline import ON_TIME_S
from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, FailedPrecondition, Unavailable
from antiphon.transport.mutual_tls import ServiceTls
from antiphon.v1 import stage_pb2
from antiphon.wire.checksum import intact, undamaged
from antiphon.wire.status import is_typed, said_by
from antiphon_gateway.fleet.cpu_pressure import CpuPressure
from antiphon_gateway.fleet.failure_detector import (
    MISSES_TO_LOSE,
    FailureDetector,
    Liveness,
    ProbeSchedule,
)
from antiphon_gateway.fleet.replica import Replica

log = logging.getLogger("gateway.stages")

DESCRIBE_TIMEOUT_S = 5.0
CONTRADICTIONS_TO_DOUBT = 2
LOAD_SILENT_S = 10.0
"""If the load stream has been silent for this many seconds, it is reopened. Stages report their
load much more often, even if it hasn't changed.
"""
WORTH_A_WORD_S = 0.5
"""If the event loop is delayed by more than this many seconds, the delay is logged."""
Serving = health_pb2.HealthCheckResponse.ServingStatus


class ReplicaWatch:
    """Monitors one replica and updates its state."""

    def __init__(
        self, replica: Replica, config: GatewayConfig, tls: ServiceTls | None = None
    ) -> None:
        self._replica = replica
        self._config = config
        self._tls = tls
        self._says_serving = False
        self._seen = replica.signs
        self._pressure = CpuPressure()
        self._silent = (
            f"it did not respond to a health check within {config.health.probe_timeout_s:g} s"
        )

    async def run(self) -> None:
        """Monitor the replica until cancelled. The channel stays open when this is cancelled."""
        reached = True
        while True:
            channel = self._replica.channel
            misread: grpc.aio.AioRpcError | None = None
            try:
                if await self._follow_health(wait_for_ready=not reached):
                    # If the stage cannot be reached on the new connection either, this ends the
                    # next health stream. A stage that is down already is waited for.
                    reached = self._replica.ready
                    continue
                self._replica.fall("it closed its health stream")
            except grpc.aio.AioRpcError as failure:
                self._replica.fall(said_by(failure), may_be_starting=_does_not_listen(failure))
                misread = failure
            except AntiphonError as error:
                self._replica.fall(error.message)
            except Exception as error:
                log.exception("watching the stage %s failed; retrying", self._replica.role)
                self._replica.fall(f"it cannot be watched: {error}")
            reached = self._replica.channel.get_state() == grpc.ChannelConnectivity.READY
            if reached or self._tls is not None:
                await asyncio.sleep(self._config.health.reconnect_s)
            if misread is not None:
                self._replica.misread(channel, misread)
            if not reached and self._tls is not None:
                # A channel keeps using the certificate with which it was opened. That certificate
                # may have expired.
                reached = True
                self._replica.open_anew()

    async def _follow_health(self, *, wait_for_ready: bool) -> bool:
        """Follow the health stream until it ends, while sending probes. Raises the error that ended
        either of them. Returns whether the replica has switched to another connection, which ends
        both.
        """
        replaced = asyncio.Event()
        self._replica.on_replaced.add(replaced.set)
        follow = asyncio.create_task(self._follow_stream(wait_for_ready=wait_for_ready))
        moving = asyncio.create_task(replaced.wait())
        tasks = (follow, asyncio.create_task(self._probe()), moving)
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in ended:
                each.result()
            return replaced.is_set()
        finally:
            self._replica.on_replaced.discard(replaced.set)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow_stream(self, *, wait_for_ready: bool) -> None:
        watch = self._replica.channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        stream = watch(health_pb2.HealthCheckRequest(), wait_for_ready=wait_for_ready)
        beside: list[asyncio.Task[None]] = []
        try:
            async for response in stream:
                self._says_serving = response.status == health_pb2.HealthCheckResponse.SERVING
                if self._says_serving:
                    self._replica.rise(await self._describe())
                else:
                    loads = response.status == health_pb2.HealthCheckResponse.NOT_SERVING
                    reason = f"it is {_name_of(response.status)}"
                    self._replica.fall(reason, may_be_starting=loads, says_so=True)
                if not beside:
                    beside.append(asyncio.create_task(self._follow_load()))
        finally:
            self._says_serving = False
            stream.cancel()
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            self._replica.take_load(None)

    async def _follow_load(self) -> None:
        """Read the replica's load reports until its health stream ends."""
        replica, loop = self._replica, asyncio.get_running_loop()
        while True:
            try:
                telling = replica.stub.WatchLoad(stage_pb2.WatchLoadRequest())
                async with asyncio.timeout(LOAD_SILENT_S) as silent:
                    async for load in undamaged(telling):
                        silent.reschedule(loop.time() + LOAD_SILENT_S)
                        replica.take_load(load)
            except TimeoutError:
                log.info(
                    "requesting the load of the stage %s again: the stream is silent", replica.role
                )
            except Unavailable as damage:
                log.info("requesting the load of the stage %s again: %s", replica.role, damage)
            except grpc.aio.AioRpcError as failure:
                if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
                    log.info(
                        "stage %s at %s does not report its load", replica.role, replica.address
                    )
                    return
            except Exception:
                log.exception("can't parse the load of the stage %s", replica.role)
            await asyncio.sleep(self._config.health.reconnect_s)

    async def _probe(self) -> None:
        """Probe the stage and compare its answers with its health stream. A stage that is silent is
        probed at regular intervals, and any other stage only rarely.

        Raises `Unavailable` if the stage is lost or if its answers contradict its health stream.
        """
        health = self._config.health
        detector = FailureDetector(health.probe_timeout_s)
        contradictions = 0
        schedule = ProbeSchedule(health.probe_interval_s, health.probe_timeout_s)
        wait_s = health.probe_interval_s
        while True:
            due = time.monotonic() + wait_s
            await asyncio.sleep(wait_s)
            if self._replica.channel.get_state() is not grpc.ChannelConnectivity.READY:
                # The stream is waiting for a connection, or is about to break.
                detector.answered()
                wait_s = health.probe_interval_s
                continue
            now, replica = time.monotonic(), self._replica
            is_late = now > due + ON_TIME_S
            wait_s = schedule.left_s(
                now, replica.reported_at, ready=replica.ready, idle=replica.idle
            )
            if wait_s:
                continue
            wait_s = health.probe_interval_s
            # If this task wasn't scheduled in time, there may be reports that the gateway hasn't
            # read yet.
            overdue_s = 0.0 if is_late else schedule.overdue_s(now, replica.reported_at)
            serves = await self._ask(detector, overdue_s)
            if serves is None:
                continue
            detector.answered()
            contradictions = contradictions + 1 if serves != self._says_serving else 0
            if contradictions >= CONTRADICTIONS_TO_DOUBT:
                raise Unavailable("its health stream contradicts the health checks")
            if not contradictions:
                schedule.confirmed(time.monotonic())

    async def _ask(self, detector: FailureDetector, overdue_s: float) -> bool | None:
        """Send probes until there is an answer. Returns whether the answer is SERVING, or None if a
        probe failed.

        If the stage is silent, it is probed a second time in case the first probe was lost. An
        answer to either probe counts. Raises `Unavailable` if the stage is lost.
        """
        probes: deque[asyncio.Task[bool | str]] = deque(maxlen=MISSES_TO_LOSE)
        try:
            while True:
                if len(probes) == MISSES_TO_LOSE:
                    probes[0].cancel()
                probes.append(asyncio.create_task(self._answer()))
                detector.sent(overdue_s)
                overdue_s = 0.0
                self._signs()
                self._pressure.begin()
                verdict = Liveness.ALIVE
                while verdict is Liveness.ALIVE:
                    slice_s = detector.next_slice_s
                    late_s = await self._wait(probes, slice_s)
                    if ended := [each for each in probes if each.done()]:
                        answer = ended[0].result()
                        if isinstance(answer, bool):
                            return answer
                        self._miss(detector.failed(), answer, detector.misses)
                        return None
                    output, reported = self._signs()
                    verdict = detector.waited(
                        slice_s,
                        late_s,
                        pressure=self._pressure.share(),
                        output=output,
                        reported=reported,
                    )
                self._miss(verdict, self._silent, detector.misses)
        finally:
            for each in probes:
                each.cancel()
            await asyncio.gather(*probes, return_exceptions=True)

    async def _wait(self, probes: Iterable[asyncio.Task[bool | str]], slice_s: float) -> float:
        """Wait until there is an answer or the time is up. Returns by how many seconds the wait
        ended too late.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + slice_s
        await asyncio.wait(probes, timeout=slice_s, return_when=asyncio.FIRST_COMPLETED)
        late_s = max(0.0, loop.time() - due)
        if late_s > WORTH_A_WORD_S:
            log.warning(
                "the event loop was blocked for %.1f s; this is not counted as silence of the "
                "stages",
                late_s,
            )
        return late_s

    def _signs(self) -> tuple[bool, bool]:
        """Return whether the stage has sent output, and whether it has sent a load report, since
        the last call.
        """
        (outputs, reports), self._seen = self._seen, self._replica.signs
        return outputs != self._replica.outputs, reports != self._replica.reports

    def _miss(self, verdict: Liveness, reason: str, misses: int) -> None:
        """Handle a probe that wasn't answered. Raises `Unavailable` if the stage is lost."""
        log.info("stage %s: %s", self._replica.role, reason)
        # While a process is still importing its libraries, it is slow to respond.
        self._replica.fall(reason, may_be_starting=True)
        if verdict is Liveness.LOST:
            self._replica.lose(f"{reason}, {misses} times in a row")
            self._replica.open_anew()
            raise Unavailable(reason)

    async def _answer(self) -> bool | str:
        """Send a probe. Returns whether the answer is SERVING, or why there is no answer.

        If there is an answer and the health stream reports SERVING, the replica becomes ready
        again.
        """
        check = self._replica.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            told = await check(health_pb2.HealthCheckRequest())
            if self._says_serving and not self._replica.ready:
                description = await self._describe()
                # The health stream may have reported a different status in the meantime.
                if self._says_serving:
                    self._replica.rise(description)
        except grpc.aio.AioRpcError as failure:
            return said_by(failure)
        except AntiphonError as error:
            self._replica.fall(error.message)
            return self._says_serving
        serving: bool = told.status == health_pb2.HealthCheckResponse.SERVING
        return serving

    async def _describe(self) -> stage_pb2.DescribeResponse:
        told = await self._replica.stub.Describe(
            stage_pb2.DescribeRequest(), timeout=DESCRIBE_TIMEOUT_S
        )
        description = intact(told)
        if description.role != self._replica.role:
            raise FailedPrecondition(
                f"the service at this address is a {description.role!r}, not a "
                f"{self._replica.role!r}"
            )
        return description


def _name_of(status: int) -> str:
    """Return the name of a serving status. A stage with a different version may use a status that
    isn't known here.
    """
    return (
        Serving.Name(status) if status in Serving.values() else (f"its state is unknown ({status})")
    )


def _does_not_listen(failure: grpc.aio.AioRpcError) -> bool:
    """Return whether the failure may mean that the server isn't listening yet. A failed TLS
    handshake has the same error code, but it isn't included.
    """
    unreachable = failure.code() is grpc.StatusCode.UNAVAILABLE and not is_typed(failure)
    return unreachable and "handshake" not in (failure.details() or "").lower()
