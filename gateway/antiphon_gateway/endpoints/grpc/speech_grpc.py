"""The gRPC service `antiphon.v1.SpeechService`, which the SDK uses."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, InvalidArgument, Unauthenticated
from antiphon.tracing.span import given_traceparent
from antiphon.v1 import converse_pb2, speech_pb2
from antiphon.version import VERSION
from antiphon.wire.convert import error_to_proto
from antiphon.wire.options import option_to_proto
from antiphon.wire.status import abort
from antiphon_gateway.admission.byte_budget import Holder
from antiphon_gateway.calls.calls import Calls
from antiphon_gateway.conversations.forced_end import ForcedEnd
from antiphon_gateway.endpoints.access_log import AccessLog, RequestLog
from antiphon_gateway.endpoints.ending import request, tell
from antiphon_gateway.endpoints.grpc.grpc_message import read_message
from antiphon_gateway.endpoints.grpc.speech_messages import (
    read_delivered,
    read_generate,
    write_event,
)
from antiphon_gateway.endpoints.sending import send_in_time
from antiphon_gateway.failover.failover_segment import FailoverSegment
from antiphon_gateway.failover.resumed import HeldPart, ResumedOutput, lacked
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.served import served_model
from antiphon_gateway.keys.credentials import Credentials, GrpcPeers
from antiphon_gateway.keys.identities import Identities
from antiphon_gateway.keys.key_use import KeyUse
from antiphon_gateway.sessions.events import Event

FEATURES = ("generate", "converse", "resume")
SERVICE = speech_pb2.DESCRIPTOR.services_by_name["SpeechService"].full_name
REQUEST_ID_KEY = "x-request-id"
AUTHORIZATION_KEY = "authorization"
CHECKED_HERE_BYTES = 2 << 10
"""Parsing up to this many bytes takes less time than passing them to another thread."""

Context = grpc.aio.ServicerContext[Any, Any]
Converse = Callable[[Context, KeyUse, ForcedEnd], Awaitable[None]]
"""A function that serves a `Converse` call. It raises an error that becomes the status of
the call.
"""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A parsed `GenerateRequest` and the form in which the client wants to receive the answer.

    The client may have requested token IDs. If another gateway began to answer the request, `held`
    is the part of the answer that the client already has.
    """

    answer: AbstractAsyncContextManager[FailoverSegment]
    include_ids: bool
    held: HeldPart | None


class SpeechServicer:
    """Implements the service using the same code as the HTTP endpoints.

    If an error occurs before the first event, it becomes the gRPC status of the call. Any later
    error is sent as the last event.
    """

    def __init__(
        self,
        calls: Calls,
        access_log: AccessLog,
        config: GatewayConfig,
        identities: Identities,
        peers: GrpcPeers,
        converse: Converse,
    ) -> None:
        self._converse = converse
        self._calls = calls
        self._identities = identities
        self._peers = peers
        self._access_log = access_log
        self._config = config

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the methods with a server. Requests are passed on as bytes, because they are
        parsed by `read_message`.
        """
        handlers = {
            "GetServerInfo": grpc.unary_unary_rpc_method_handler(
                self.GetServerInfo,
                request_deserializer=speech_pb2.GetServerInfoRequest.FromString,
                response_serializer=speech_pb2.GetServerInfoResponse.SerializeToString,
            ),
            "Generate": grpc.unary_stream_rpc_method_handler(
                self.Generate,
                response_serializer=speech_pb2.GenerateResponse.SerializeToString,
            ),
            "Converse": grpc.stream_stream_rpc_method_handler(
                self.Converse,
                response_serializer=converse_pb2.ConverseResponse.SerializeToString,
            ),
        }
        handler = grpc.method_handlers_generic_handler(SERVICE, handlers)
        server.add_generic_rpc_handlers((handler,))

    async def GetServerInfo(
        self, _: speech_pb2.GetServerInfoRequest, context: Context
    ) -> speech_pb2.GetServerInfoResponse:
        """Return what is currently served. There is no model until a stage has reported one."""
        try:
            await self._key_of(context)
        except (Unauthenticated, InvalidArgument) as error:
            await abort(context, error)
        return server_info(self._calls.fleet)

    async def Generate(self, data: bytes, context: Context) -> None:
        """Answer a request. If this is cancelled, all stages are released."""
        _take_traceparent(context)
        refused: AntiphonError | None = None

        async def refuse(entry: RequestLog, error: AntiphonError) -> None:
            nonlocal refused
            entry.status = error.code.name
            refused = error

        async with request(self._access_log, "grpc", "Generate", refuse) as entry:
            await context.send_initial_metadata(((REQUEST_ID_KEY, entry.request_id),))
            entry.status = grpc.StatusCode.CANCELLED.name
            entry.key = await self._key_of(context)
            with entry.admitted():
                await self._answer(data, context, entry)
            if entry.error is None:
                entry.status = grpc.StatusCode.OK.name
        # End the request at this point, because sending the status may have to wait for a client
        # that isn't reading.
        if refused is not None:
            await abort(context, refused)

    async def Converse(self, request_iterator: object, context: Context) -> None:
        """Serve a conversation. Its messages are read from the context, also as bytes."""
        _take_traceparent(context)
        try:
            forced_end = ForcedEnd()
            identity = await self._identities.identify(self._credentials_of(context))
            with self._identities.conversation(identity, forced_end.end):
                await self._converse(context, identity.key, forced_end)
        except AntiphonError as error:
            # From here on, the key can be used for another conversation, even if the client takes a
            # long time to read the status.
            await abort(context, error)

    async def _key_of(self, context: Context) -> KeyUse:
        """Return the API key in the call's metadata. Raises `Unauthenticated` if the key isn't
        valid, and `InvalidArgument` if there is more than one key.
        """
        return (await self._identities.identify(self._credentials_of(context))).key

    async def _answer(self, data: bytes, context: Context, entry: RequestLog) -> None:
        async def write(message: speech_pb2.GenerateResponse) -> None:
            await send_in_time(context.write(message), self._config.connections.send_timeout_s)

        async def write_last(entry: RequestLog, error: AntiphonError) -> None:
            entry.status = error.code.name
            await write(speech_pb2.GenerateResponse(error=error_to_proto(error)))

        asked = await self._read(data, context, entry)
        async with asked.answer as segment:
            events: AsyncIterator[Event] = segment
            if asked.held is not None:
                events = lacked(segment, ResumedOutput(asked.held, with_ids=asked.include_ids))
            await tell(
                events,
                entry,
                lambda e: write(write_event(e, include_ids=asked.include_ids)),
                write_last,
            )

    async def _read(self, data: bytes, context: Context, entry: RequestLog) -> _Asked:
        """Parse a message. No reference to the message is kept."""
        left_s = context.time_remaining()
        with self._calls.memory.lease(Holder.UPLOADS) as lease:
            lease.keep()
            lease.take(len(data))
            message = await read_message(
                speech_pb2.GenerateRequest,
                data,
                self._config.limits.max_body_values,
                CHECKED_HERE_BYTES,
            )
        within_s = math.inf if left_s is None else left_s
        order = read_generate(message, within_s, max_parts=self._config.limits.max_parts)
        held = read_delivered(message)
        return _Asked(self._calls.answer(entry.for_key(order)), message.include_ids, held)

    def _credentials_of(self, context: Context) -> Credentials:
        """Return the caller's credentials. Raises `InvalidArgument` if there are several keys."""
        keys = _metadata_values(context, AUTHORIZATION_KEY)
        if len(keys) > 1:
            raise InvalidArgument(
                f"{AUTHORIZATION_KEY}: more than one API key was sent; send only one",
                field=AUTHORIZATION_KEY,
            )
        return Credentials(
            keys[0] if keys else None,
            self._peers.address_of(context.peer()),
            partial(_metadata_values, context),
        )


def _metadata_values(context: Context, name: str) -> list[str]:
    """Return all metadata values with the given name, which must be in lower case."""
    metadata = context.invocation_metadata() or ()
    return [value for each, value in metadata if each == name and isinstance(value, str)]


def _take_traceparent(context: Context) -> None:
    """Continue the client's trace in this task and in every task that it creates."""
    given = dict(context.invocation_metadata() or ()).get("traceparent", "")
    given_traceparent.set(given if isinstance(given, str) else "")


def server_info(fleet: Fleet) -> speech_pb2.GetServerInfoResponse:
    """Return the combined capabilities of the running stages."""
    info = speech_pb2.GetServerInfoResponse(version=VERSION, features=FEATURES)
    try:
        served = served_model(fleet)
    except AntiphonError:
        return info
    if served.outputs:
        info.models.add(
            name=served.name,
            voices=served.voices,
            sample_rate_hz=served.sample_rate_hz,
            input_kinds=served.input_kinds,
            output_kinds=served.outputs,
            context_limit=served.context_limit,
            options=map(option_to_proto, served.options),
            sampling_stages=served.sampling_stages,
        )
    return info
