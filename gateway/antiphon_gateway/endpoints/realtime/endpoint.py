"""The WebSocket endpoint at `/v1/realtime`. It decides who can connect and sends events to the
client.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from functools import partial

import msgspec
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from antiphon.errors import (
    AntiphonError,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotImplementedYet,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from antiphon_gateway.conversations.conversations import AdmittedConversation
from antiphon_gateway.conversations.forced_end import ForcedEnd
from antiphon_gateway.conversations.saved import SavedConversation
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.endpoints.conversation_endpoint import ConversationEndpoint
from antiphon_gateway.endpoints.http.authorization import credentials_of, protocol_of
from antiphon_gateway.endpoints.http.errors import error_response
from antiphon_gateway.endpoints.http.origins import FORBIDDEN, AllowedOrigins, ForeignOrigin
from antiphon_gateway.endpoints.http.websocket import websocket_of
from antiphon_gateway.endpoints.ignored_fields import IgnoredFieldReport
from antiphon_gateway.endpoints.realtime.call import RealtimeCall
from antiphon_gateway.endpoints.realtime.errors import error_json
from antiphon_gateway.endpoints.realtime.incoming import IncomingMessages
from antiphon_gateway.endpoints.realtime.resuming import flag, resumed_of
from antiphon_gateway.endpoints.realtime.server_events import Json
from antiphon_gateway.endpoints.sending import ClientStalled
from antiphon_gateway.keys.identities import Identities
from antiphon_gateway.keys.key_use import KeyUse

PATH = "/v1/realtime"
POLICY_VIOLATED = 1008
"""The WebSocket close code for errors caused by the client. It is used if they end the client's
conversation.
"""

MOST_REASON_BYTES = 123
SERVICE_RESTARTS = 1012
"""The WebSocket close code that asks the client to reconnect right away. The new connection goes to
another gateway.
"""
TRY_AGAIN_LATER = 1013
"""The WebSocket close code for connections that had to make room for others."""
_CLOSE_CODES: dict[type[AntiphonError], int] = {
    Unavailable: SERVICE_RESTARTS,
    Unauthenticated: POLICY_VIOLATED,
    ResourceExhausted: TRY_AGAIN_LATER,
}


class RealtimeEndpoint:
    """Serves WebSocket connections. Each connection has one conversation."""

    def __init__(
        self, endpoint: ConversationEndpoint, identities: Identities, origins: AllowedOrigins
    ) -> None:
        self._endpoint = endpoint
        self._origins = origins
        self._identities = identities
        self._ignored = IgnoredFieldReport(endpoint.metrics)

    def route(self) -> BaseRoute:
        """Return the WebSocket route."""
        return WebSocketRoute(PATH, self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection from its handshake until it closes."""
        websocket = WebSocket(scope, receive, send)
        with ExitStack() as admitted:
            try:
                self._origins.check(websocket.headers)
                forced_end = ForcedEnd()
                identity = await self._identities.identify(credentials_of(websocket.scope))
                key = identity.key
                admitted.enter_context(self._identities.conversation(identity, forced_end.end))
                _check_intent(websocket.query_params.get("intent", ""))
                model = websocket.query_params.get("model", "")
                conversation = admitted.enter_context(
                    self._endpoint.conversations.admit(model, key.name, forced_end)
                )
                resumable = flag("resumable", websocket.query_params.get("resumable"))
                resumed = flag("resumed", websocket.query_params.get("resumed"))
            except AntiphonError as error:
                status = FORBIDDEN if isinstance(error, ForeignOrigin) else 0
                await websocket.send_denial_response(error_response(error, status))
                return
            try:
                await websocket.accept(protocol_of(websocket.scope))
                await self._serve(
                    websocket, receive, conversation, key, resumable=resumable, resumed=resumed
                )
            except (Unavailable, Unauthenticated, ResourceExhausted) as ended:
                with suppress(WebSocketDisconnect, RuntimeError):
                    await websocket.close(_CLOSE_CODES[type(ended)], ended.message)
            except (WebSocketDisconnect, Cancelled):
                # The client has disconnected, or its connection was cut. This isn't the gateway's
                # fault.
                return

    async def _serve(
        self,
        websocket: WebSocket,
        receive: Receive,
        admitted: AdmittedConversation,
        key: KeyUse,
        *,
        resumable: bool,
        resumed: bool,
    ) -> None:
        came = IncomingMessages(receive, websocket_of(websocket.scope).has_message)

        async def send(event: Json) -> None:
            if came.left:
                raise Cancelled("the client has disconnected")
            try:
                await websocket.send_text(msgspec.json.encode(event).decode())
            except (WebSocketDisconnect, RuntimeError, ClientStalled):
                # The second error occurs if the server has closed the connection because a ping
                # wasn't answered.
                raise Cancelled("the client has disconnected") from None

        settings = admitted.settings
        saved: SavedConversation | None = None
        if resumed:
            try:
                saved = await self._resumed(came, key, settings)
            except (InvalidArgument, FailedPrecondition, DeadlineExceeded) as error:
                await send(error_json(error, None))
                reason = error.message.encode()[:MOST_REASON_BYTES].decode(errors="ignore")
                await websocket.close(POLICY_VIOLATED, reason)
                return
            settings = saved.settings
        call = RealtimeCall(
            self._endpoint,
            key,
            admitted,
            settings,
            send,
            partial(self._ignored.report, PATH, key.name),
            resumable=resumable,
            resumed=saved,
        )
        del saved
        await call.run(came)

    async def _resumed(
        self, came: IncomingMessages, key: KeyUse, first: ConversationSettings
    ) -> SavedConversation:
        """Return the conversation that the first event asks to resume.

        Raises the errors of `resumed_of`, and `DeadlineExceeded` if no event arrives in time.
        """
        most_s = self._endpoint.config.limits.body_timeout_s
        try:
            async with asyncio.timeout(most_s):
                data = await came.read()
        except TimeoutError:
            raise DeadlineExceeded(f"no event was received for {most_s:g} s") from None
        if data is None:
            raise Cancelled("the client has disconnected")
        return await resumed_of(data, self._endpoint.conversations, key.name, first)


def _check_intent(intent: str) -> None:
    """Raise `NotImplementedYet` if the client expects a session that only transcribes."""
    if intent == "transcription":
        raise NotImplementedYet(
            "intent: transcription sessions are not supported; use /v1/audio/transcriptions, or a "
            "conversation with session.audio.input.transcription",
            field="intent",
        )
