"""`antiphon.v1.SpeechService`: the door of the client SDK."""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, Internal, InvalidArgument, NotImplementedYet
from antiphon.v1 import speech_pb2
from antiphon.version import VERSION
from antiphon.wire.convert import error_to_proto
from antiphon.wire.fields import check_fields
from antiphon.wire.status import abort
from gateway.calls.request import AUDIO, TEXT
from gateway.doors.access_log import Entry, Journal
from gateway.doors.sending import ClientStalled, send_in_time
from gateway.doors.speech import Speech
from gateway.doors.speech_messages import read_generate, write_event
from gateway.fleet.stages import Stages

log = logging.getLogger("gateway.grpc")

FEATURES = ("generate",)
SERVICE = speech_pb2.DESCRIPTOR.services_by_name["SpeechService"].full_name
REQUEST_ID_KEY = "x-request-id"

Context = grpc.aio.ServicerContext[Any, Any]


class SpeechServicer:
    """The service over the same calls as HTTP.

    An error before the first event is the call's gRPC status; a later one is the
    last event.
    """

    def __init__(self, speech: Speech, journal: Journal, config: GatewayConfig) -> None:
        self._speech = speech
        self._journal = journal
        self._config = config

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve the methods there. A request of `Generate` comes as bytes: see `_parse`."""
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
            "Converse": grpc.stream_stream_rpc_method_handler(self.Converse),
        }
        handler = grpc.method_handlers_generic_handler(SERVICE, handlers)
        server.add_generic_rpc_handlers((handler,))

    async def GetServerInfo(
        self, request: speech_pb2.GetServerInfoRequest, context: Context
    ) -> speech_pb2.GetServerInfoResponse:
        """What is served now; no model while no stage has told of one."""
        return server_info(self._speech.stages)

    async def Generate(self, request: bytes, context: Context) -> None:
        """Answer once. Cancelling frees every stage."""
        request_id = f"req_{uuid.uuid4().hex}"
        with self._journal.entry("grpc", "Generate", request_id) as entry:
            await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))
            entry.status = grpc.StatusCode.CANCELLED.name
            try:
                await self._answer(request, context, entry)
                if entry.error is None:
                    entry.status = grpc.StatusCode.OK.name
            except AntiphonError as error:
                await _end_with(error, context, entry)
            except Exception:
                log.exception("request %s broke", request_id)
                mistake = Internal("the gateway made a mistake; its log has more")
                await _end_with(mistake, context, entry)

    async def Converse(self, request_iterator: object, context: Context) -> None:
        """Not there yet."""
        await abort(context, NotImplementedYet("Converse is not implemented yet"))

    async def _answer(self, data: bytes, context: Context, entry: Entry) -> None:
        left_s = context.time_remaining()
        request = await self._parse(data)
        order = read_generate(
            request, math.inf if left_s is None else left_s, max_parts=self._config.max_parts
        )
        async with self._speech.answer(order) as call:
            try:
                async for event in call:
                    entry.note(event)
                    message = write_event(event, include_ids=request.include_ids)
                    await self._write(context, message)
            except ClientStalled:
                raise
            except AntiphonError as error:
                if not entry.session_id:
                    raise
                # Before the client knows: it may cancel as soon as it does.
                entry.fail(error)
                entry.status = error.code.name
                last = speech_pb2.GenerateResponse(error=error_to_proto(error))
                await self._write(context, last)

    async def _parse(self, data: bytes) -> speech_pb2.GenerateRequest:
        """The request. Raises `InvalidArgument` for one of too many fields, or none at all."""
        kind = speech_pb2.GenerateRequest
        await asyncio.to_thread(check_fields, data, kind.DESCRIPTOR, self._config.max_body_values)
        try:
            return kind.FromString(data)
        except DecodeError as error:
            raise InvalidArgument("the bytes are no GenerateRequest") from error

    async def _write(self, context: Context, message: speech_pb2.GenerateResponse) -> None:
        await send_in_time(context.write(message), self._config.send_timeout_s)


def server_info(stages: Stages) -> speech_pb2.GetServerInfoResponse:
    """What the stages that are up can do together."""
    info = speech_pb2.GetServerInfoResponse(version=VERSION, features=FEATURES)
    for outputs in (frozenset({TEXT, AUDIO}), frozenset({TEXT})):
        try:
            lineup = stages.line_up(outputs)
        except AntiphonError:
            continue
        reader = lineup.input_member.description
        info.models.add(
            name=stages.model_name(),
            voices=lineup.voices,
            sample_rate_hz=lineup.sample_rate_hz,
            input_kinds=reader.input_kinds,
            output_kinds=sorted(outputs, reverse=True),
            context_limit=reader.context_limit,
        )
        break
    return info


async def _end_with(error: AntiphonError, context: Context, entry: Entry) -> None:
    """End a call with the status of an error."""
    entry.fail(error)
    entry.status = error.code.name
    await abort(context, error)
