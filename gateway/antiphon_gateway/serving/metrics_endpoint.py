"""Serves metrics on a separate address, if the deployment configures one."""

from __future__ import annotations

import asyncio

import uvicorn

from antiphon.deployment.address import host_and_port
from antiphon_gateway.endpoints.http.app import metrics_app
from antiphon_gateway.metrics import Metrics
from antiphon_gateway.serving.http_server import HttpServer, listen

FIELD = "gateway.metrics_listen"
MAX_REQUESTS = 64
"""The maximum number of concurrent requests. Prometheus needs only one. Any others are refused with
status 503.
"""
HEAD_TIMEOUT_S = 5.0


class MetricsEndpoint:
    """Serves only `/metrics`. `address` has the form "host:port". If there is no separate address,
    it is empty.

    Raises `InvalidArgument` if the configured address is invalid.
    """

    def __init__(self, address: str, metrics: Metrics) -> None:
        self.address = ""
        self._listen = host_and_port(address, field=FIELD) if address else None
        self._server = HttpServer(
            uvicorn.Config(
                metrics_app(metrics),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                limit_concurrency=MAX_REQUESTS,
                timeout_keep_alive=round(HEAD_TIMEOUT_S),
                timeout_graceful_shutdown=1,
            ),
            None,
            HEAD_TIMEOUT_S,
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start listening. Raises `Unavailable` if the address is already in use."""
        if self._listen is None:
            return
        listeners, self.address = listen(*self._listen, field=FIELD)
        self._serving = asyncio.create_task(self._server.serve(sockets=listeners))

    async def stop(self) -> None:
        """Stop the endpoint."""
        if self._serving is not None:
            self._server.should_exit = True
            self._server.cut_connections()
            await self._serving
