"""Reports the combined health of several stages that run in one container.

An orchestrator can only probe a container as a whole. Each probe is therefore forwarded to every
stage, so that the liveness check fails if any stage has a blocked event loop. A stage without a
process is being restarted. It counts as alive, but not as ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from antiphon.runtime.server.health import ALIVE
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.transport.listening import reached_here

ANSWER_S = 4.0
"""The maximum time for the response of a stage. It is shorter than the timeout of the probes."""

Status = health_pb2.HealthCheckResponse


class HealthOfAll(health_pb2_grpc.HealthServicer):
    """Implements `grpc.health.v1` for all stages together.

    `endpoints` returns the current probe address of each stage, or an empty address for a stage
    that does not listen.
    """

    def __init__(
        self, endpoints: Callable[[], Sequence[str]], *, answer_s: float = ANSWER_S
    ) -> None:
        self._endpoints = endpoints
        self._answer_s = answer_s

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: object
    ) -> health_pb2.HealthCheckResponse:
        """Return SERVING if every stage returns SERVING for this name."""
        answers = await asyncio.gather(*(self._ask(each, request) for each in self._endpoints()))
        good = bool(answers) and all(answers)
        return Status(status=Status.SERVING if good else Status.NOT_SERVING)

    async def _ask(self, endpoint: str, request: health_pb2.HealthCheckRequest) -> bool:
        if not endpoint:
            return bool(request.service == ALIVE)
        async with grpc.aio.insecure_channel(
            reached_here(endpoint), options=CHANNEL_OPTIONS
        ) as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=Status.FromString,
            )
            try:
                told = await check(request, timeout=self._answer_s)
            except grpc.aio.AioRpcError:
                return False
        return bool(told.status == Status.SERVING)
