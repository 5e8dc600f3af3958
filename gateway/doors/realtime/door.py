"""The WebSocket at `/v1/realtime`: who may come in, and how events reach the client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import (
    AntiphonError,
    Cancelled,
    InvalidArgument,
    NotImplementedYet,
    ResourceExhausted,
)
from gateway.calls.calls import Calls
from gateway.conversations.settings import ConversationSettings
from gateway.doors.access_log import AccessLog
from gateway.doors.http.errors import error_response
from gateway.doors.realtime.call import RealtimeCall
from gateway.doors.realtime.server_events import Json
from gateway.doors.realtime.settings import RATE_HZ
from gateway.doors.sending import ClientStalled
from gateway.fleet.served import served_model
from gateway.outputs import AUDIO


class RealtimeDoor:
    """Serves connections, at most `max_conversations` at a time."""

    def __init__(self, calls: Calls, config: GatewayConfig, access_log: AccessLog) -> None:
        self._calls = calls
        self._config = config
        self._access_log = access_log
        self.open = 0

    async def serve(self, websocket: WebSocket) -> None:
        """One connection, from the handshake to its end."""
        try:
            self._check_origin(websocket)
            settings = self._admit(websocket.query_params.get("model", ""))
        except AntiphonError as error:
            status = 403 if isinstance(error, InvalidArgument) else 0
            await websocket.send_denial_response(error_response(error, status))
            return
        self.open += 1
        try:
            await websocket.accept()
            await self._serve(websocket, settings)
        except (WebSocketDisconnect, Cancelled):
            # The client has gone, or its connection was cut; both are nobody's fault here.
            return
        finally:
            self.open -= 1

    def _check_origin(self, websocket: WebSocket) -> None:
        """Raise `InvalidArgument` for a page of an origin that may not ask.

        No browser asks on behalf of a WebSocket whether its page may open it.
        """
        origin, host = websocket.headers.get("origin"), websocket.headers.get("host", "")
        allowed = self._config.cors_origins
        own = origin in (f"http://{host}", f"https://{host}")
        if origin is not None and not own and origin not in allowed and "*" not in allowed:
            raise InvalidArgument(
                f"pages of {origin} may not ask this gateway; gateway.cors_origins names those "
                "that may"
            )

    def _admit(self, model: str) -> ConversationSettings:
        """What holds at first. Raises `AntiphonError` for who cannot come in."""
        self._calls.check_open()
        self._calls.check_model(model)
        if self.open >= self._config.max_conversations:
            raise ResourceExhausted(
                f"{self.open} conversations are open, which is the most "
                "(gateway.max_conversations)",
                retry_after_s=1.0,
            )
        served = served_model(self._calls.stages)
        spoken = AUDIO in served.outputs
        if spoken and served.sample_rate_hz != RATE_HZ:
            raise NotImplementedYet(
                f"this model speaks at {served.sample_rate_hz} Hz; realtime audio has {RATE_HZ} Hz"
            )
        voice = served.voices[0] if served.voices else ""
        return ConversationSettings(served.name, served.voices, spoken=spoken, voice=voice)

    async def _serve(self, websocket: WebSocket, settings: ConversationSettings) -> None:
        async def send(event: Json) -> None:
            if websocket.client_state is not WebSocketState.CONNECTED:
                raise Cancelled("the client has left")
            try:
                await websocket.send_text(msgspec.json.encode(event).decode())
            except (WebSocketDisconnect, RuntimeError, ClientStalled):
                # The second when the server has closed it: a ping that nobody answered.
                raise Cancelled("the client has left") from None

        async def incoming() -> AsyncIterator[str]:
            while (message := await websocket.receive())["type"] == "websocket.receive":
                data = message.get("text")
                yield message["bytes"].decode(errors="replace") if data is None else data

        call = RealtimeCall(self._calls, self._config, self._access_log, settings, send)
        await call.run(incoming())
