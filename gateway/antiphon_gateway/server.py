"""Runs the gateway, with its stages, sessions and endpoints on a single event loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import cast

import grpc
import uvicorn
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from starlette.routing import BaseRoute

from antiphon.deployment.address import host_and_port
from antiphon.deployment.schema import Deployment, GatewayConfig
from antiphon.tracing.tracing import open_tracing
from antiphon.transport.channel import CLIENT_SERVER_OPTIONS
from antiphon_gateway.calls.calls import Calls
from antiphon_gateway.config import delivery_of
from antiphon_gateway.conversations.conversations import Conversations
from antiphon_gateway.endpoints.access_log import AccessLog
from antiphon_gateway.endpoints.conversation_endpoint import ConversationEndpoint
from antiphon_gateway.endpoints.grpc.converse.endpoint import ConverseEndpoint
from antiphon_gateway.endpoints.grpc.speech_grpc import SERVICE, SpeechServicer
from antiphon_gateway.endpoints.http.app import http_app, metrics_route, moved_metrics_route
from antiphon_gateway.endpoints.http.connection import ConnectionLimiter
from antiphon_gateway.endpoints.http.health import health_route
from antiphon_gateway.endpoints.http.origins import AllowedOrigins
from antiphon_gateway.endpoints.http.page import page_routes
from antiphon_gateway.endpoints.openai.chat.request import CHAT
from antiphon_gateway.endpoints.openai.endpoint import HttpEndpoint
from antiphon_gateway.endpoints.openai.endpoint_app import SharedByEndpoints, endpoint_routes
from antiphon_gateway.endpoints.openai.image_generation.request import IMAGES
from antiphon_gateway.endpoints.openai.listings import listing_routes
from antiphon_gateway.endpoints.openai.openapi import document_routes
from antiphon_gateway.endpoints.openai.read_aloud.request import SPEECH
from antiphon_gateway.endpoints.openai.transcribe.request import TRANSCRIPTIONS
from antiphon_gateway.endpoints.openai.transcribe.translation import TRANSLATIONS
from antiphon_gateway.endpoints.realtime.endpoint import RealtimeEndpoint
from antiphon_gateway.endpoints.realtime.event_reference import event_reference
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.fleet_metrics import FleetMetrics
from antiphon_gateway.host_store import HostStore
from antiphon_gateway.keys.credentials import GrpcPeers
from antiphon_gateway.keys.identities import Identities
from antiphon_gateway.keys.shared_use import SharedUses
from antiphon_gateway.metrics import Metrics
from antiphon_gateway.scaler.deployed import scaler_of
from antiphon_gateway.serving.grpc_front import FrontBounds
from antiphon_gateway.serving.grpc_server import GrpcServer
from antiphon_gateway.serving.http_server import SHUTDOWN_GRACE_S, HttpServer, listen
from antiphon_gateway.serving.metrics_endpoint import MetricsEndpoint
from antiphon_gateway.serving.tls import server_tls

HTTP_ENDPOINTS: tuple[HttpEndpoint, ...] = (CHAT, SPEECH, TRANSCRIPTIONS, TRANSLATIONS, IMAGES)
"""The endpoints of OpenAI's API that accept POST requests."""

# A connection is closed if its client hasn't made a call for this long. The client automatically
# reconnects for its next call.
GRPC_IDLE_MS = 60_000
STAGES_S = 3.0
"""The number of seconds that a gateway waits for its stages before it begins to share its ports.
After that, it serves the outputs whose stages are ready.
"""
# How many pings may arrive less than half a second apart if the server sends no data in between. If
# the network has delayed several pings, they can all arrive at once.
GRPC_PING_STRIKES = 16
# gRPC stores its options as 32-bit integers.
_MOST_MS = (1 << 31) - 1


class Gateway:
    """A gateway that serves requests for the duration of its context. `http_address` and
    `grpc_address` have the form "host:port".

    When the context is left, the gateway stops accepting requests. Requests in progress have
    `drain_s` seconds to complete before they are terminated. Call `force_stop` to skip this wait.
    Raises `InvalidArgument` if an address is invalid, and `Unavailable` if it is already in use.
    """

    def __init__(
        self, deployment: Deployment, endpoints: Sequence[HttpEndpoint] = HTTP_ENDPOINTS
    ) -> None:
        self._config = config = deployment.gateway
        self.fleet = Fleet(deployment)
        self.metrics = Metrics(in_flight=lambda: self.calls.in_flight)
        self._tracing = open_tracing(
            config.trace.endpoint,
            "antiphon-gateway",
            field="gateway.trace.endpoint",
            ratio=config.trace.ratio,
            trace_clients=config.trace.clients,
        )
        delivery = delivery_of(deployment)
        self.calls = Calls(self.fleet, config, delivery, self.metrics, self._tracing)
        self._conversations = Conversations(self.calls, config)
        self._access_log = AccessLog(self.metrics, self._tracing)
        directory = config.sharing.directory
        self._store = HostStore(directory) if directory else None
        shared = None
        if self._store is not None:
            shared = SharedUses(self._store, self.metrics.unshared_key_use)
        self._identities = Identities(config, self.metrics.not_admitted, shared=shared)
        self._shared = SharedByEndpoints(config, self.metrics, self.calls.memory, self._store)
        self._tls = None if config.tls is None else server_tls(config.tls)
        self._health = health.aio.HealthServicer()
        self._grpc = self._grpc_server()
        self._http_listen = host_and_port(config.http_listen, field="gateway.http_listen")
        self._connection_limiter = ConnectionLimiter(config, self.metrics.refuse)
        self._http = self._http_server(endpoints)
        self._metrics_endpoint = MetricsEndpoint(config.metrics_listen, self.metrics)
        self.scaler = scaler_of(deployment, self.fleet, self.calls.admission)
        self._tasks: list[asyncio.Task[None]] = []
        self.http_address = self.grpc_address = ""
        self._watch()

    async def __aenter__(self) -> Gateway:
        share = self._config.sharing.ports
        listeners: list[socket.socket] = []
        if share:
            # Until this gateway knows its stages, the others serve its connections.
            await self.fleet.__aenter__()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STAGES_S):
                    await self.fleet.wait_ready()
        try:
            listeners, self.http_address = listen(
                *self._http_listen, field="gateway.http_listen", share=share
            )
            await self._set_health(serving=False)
            await self._metrics_endpoint.start()
            self.grpc_address = await self._grpc.start()
            if self.scaler is not None:
                await self.scaler.__aenter__()
        except BaseException:
            for each in listeners:
                each.close()
            await self._metrics_endpoint.stop()
            if share:
                await self.fleet.__aexit__(None, None, None)
            raise
        if not share:
            await self.fleet.__aenter__()
        self._tasks = [
            asyncio.create_task(self._http.serve(sockets=listeners)),
            asyncio.create_task(self._tell_health()),
        ]
        if self._store is not None:
            self._recovering = asyncio.create_task(self._store.recover())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        drained_at = loop.time() + self._config.drain_s
        self.calls.refuse()
        if self._config.sharing.ports:
            # The kernel sends new connections to the other gateways.
            self._http.stop_accepting()
            self._grpc.stop_accepting()
        self._connection_limiter.send_elsewhere()
        await self._grpc.send_elsewhere(self._config.drain_s + SHUTDOWN_GRACE_S)
        if self.scaler is not None:
            # From now on, KEDA asks another gateway.
            await self.scaler.__aexit__(kind, error, trace)
        self.calls.memory.clear()
        serving, telling = self._tasks
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        await self._health.enter_graceful_shutdown()
        await self.calls.close(self._config.drain_s)
        await self._conversations.wait_none(SHUTDOWN_GRACE_S)
        # Some answers are complete, but their clients haven't read all of them.
        left_s = max(SHUTDOWN_GRACE_S, drained_at - loop.time())
        self._http.config.timeout_graceful_shutdown = math.ceil(left_s)
        self._http.end()
        await self._grpc.stop(SHUTDOWN_GRACE_S)
        hurried = asyncio.create_task(self.calls.wait_hurried())
        await asyncio.wait((serving, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        self._http.cut_connections()
        await serving
        await self._metrics_endpoint.stop()
        self._shared.close()
        if self._store is not None:
            self._recovering.cancel()
            await asyncio.gather(self._recovering, return_exceptions=True)
            self._store.close()
        self._conversations.close()
        await self.fleet.__aexit__(kind, error, trace)
        await asyncio.to_thread(self._tracing.close)

    @property
    def metrics_address(self) -> str:
        """The address of the metrics endpoint, in the form "host:port"."""
        return self._metrics_endpoint.address or self.http_address

    def force_stop(self) -> None:
        """End all requests that are still running while the context is being left."""
        self.calls.force_stop()

    async def wait_ready(self) -> None:
        """Wait until all stages are ready and compatible."""
        await self.fleet.wait_ready()

    async def wait_closed(self) -> None:
        """Wait until the gRPC endpoint closes for any reason other than a call to stop
        the gateway.
        """
        await self._grpc.wait_closed()

    def _grpc_server(self) -> GrpcServer:
        """Return the gRPC server, with the `Speech` service, health checks and reflection."""
        config, peers = self._config, GrpcPeers()
        converse = ConverseEndpoint(self._conversation_endpoint("grpc"))
        speech = SpeechServicer(
            self.calls, self._access_log, config, self._identities, peers, converse.serve
        )

        def add_services(server: grpc.aio.Server) -> None:
            speech.add_to(server)
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
            names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)

        return GrpcServer(
            config.grpc_listen,
            add_services,
            _server_options(config),
            FrontBounds(
                connections=config.connections.max_grpc_connections,
                per_address=config.connections.max_grpc_connections_per_address,
                head_s=config.connections.head_timeout_s,
                closing_s=config.connections.send_timeout_s,
            ),
            None if self._tls is None else self._tls.grpc,
            self.metrics.refuse,
            peers,
            share=config.sharing.ports,
        )

    def _http_server(self, endpoints: Sequence[HttpEndpoint]) -> HttpServer:
        """Return the HTTP and WebSocket server, which listens on a single address."""
        config, limiter = self._config, self._connection_limiter
        origins = AllowedOrigins(config.cors_origins)
        app = http_app(
            self._routes(endpoints, origins),
            origins,
            self._identities,
            self._access_log,
            config,
            self.metrics,
        )
        return HttpServer(
            uvicorn.Config(
                app,
                http=cast(type[asyncio.Protocol], limiter),
                ws=cast(type[asyncio.Protocol], limiter.websocket),
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                log_level="error",
                timeout_keep_alive=math.ceil(config.connections.head_timeout_s),
                access_log=False,
                server_header=False,
                # Clients are identified by the address of their connection, because they could put
                # anything into a forwarding header.
                proxy_headers=False,
            ),
            None if self._tls is None else self._tls.http,
            config.connections.head_timeout_s,
        )

    def _routes(
        self, endpoints: Sequence[HttpEndpoint], origins: AllowedOrigins
    ) -> list[BaseRoute]:
        """Return the routes for all HTTP endpoints."""
        config, calls = self._config, self.calls
        realtime = RealtimeEndpoint(
            self._conversation_endpoint("realtime"), self._identities, origins
        )
        # Starlette tries the routes one after another, so the most frequent ones come first.
        return [
            *endpoint_routes(endpoints, calls, self._shared, config, self.metrics),
            realtime.route(),
            *page_routes(),
            *listing_routes(calls),
            *document_routes(endpoints, self.fleet, config.unknown_fields, event_reference),
            health_route(calls, self._identities),
            moved_metrics_route() if config.metrics_listen else metrics_route(self.metrics),
        ]

    def _conversation_endpoint(self, api: str) -> ConversationEndpoint:
        return ConversationEndpoint(
            api, self._conversations, self._config, self._access_log, self.metrics
        )

    def _watch(self) -> None:
        """Register the metrics that describe the gateway's state."""
        watch, shares = self.metrics.watch, self._conversations.shares
        limiter = self._connection_limiter
        self.metrics.registry.register(FleetMetrics(self.fleet))
        watch("grpc_connections", "gRPC connections", lambda: self._grpc.connections)
        watch("connections", "HTTP connections", lambda: limiter.connections)
        watch("conversations", "Open conversations", lambda: shares.open)
        if self.scaler is not None:
            peers = self.scaler.peers
            watch(
                "scaler_peers",
                "Other gateways that have reported their demand",
                lambda: len(peers.told_by),
            )

    async def _tell_health(self) -> None:
        """Keep the gRPC health service in sync with the stages. This runs until it is cancelled."""
        async for ready in self.fleet.readiness():
            await self._set_health(serving=ready)

    async def _set_health(self, *, serving: bool) -> None:
        response = health_pb2.HealthCheckResponse
        status = response.SERVING if serving else response.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, status)


def _server_options(config: GatewayConfig) -> list[tuple[str, int]]:
    options = dict(CLIENT_SERVER_OPTIONS)
    options["grpc.max_receive_message_length"] = config.limits.max_body_bytes
    # The status of a call is sent only after the client has read the data before it, so a client
    # that stays connected could hold a call open forever. For this reason, a connection accepts
    # calls only for as long as one request may take. After that, its calls have as much time as one
    # request or conversation may take. Well-behaved clients reconnect automatically.
    longest_s = max(config.limits.request_timeout_s, config.conversations.max_conversation_s)
    age_ms = min(math.ceil(config.limits.request_timeout_s * 1000), _MOST_MS)
    grace_ms = min(math.ceil(longest_s * 1000), _MOST_MS)
    options["grpc.max_connection_age_ms"] = age_ms
    options["grpc.max_connection_age_grace_ms"] = grace_ms
    # How long to wait for the client's HTTP/2 settings.
    options["grpc.server_handshake_timeout_ms"] = min(
        math.ceil(config.connections.head_timeout_s * 1000), _MOST_MS
    )
    options["grpc.max_connection_idle_ms"] = GRPC_IDLE_MS
    options["grpc.max_concurrent_streams"] = (
        config.queue.max_calls + config.conversations.max_conversations
    )
    options["grpc.http2.max_ping_strikes"] = GRPC_PING_STRIKES
    return list(options.items())
