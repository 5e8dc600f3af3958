"""Typed stubs for asyncio channels. The generated classes support both asyncio and synchronous
channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import grpc

from antiphon.v1 import demand_pb2_grpc, session_pb2, speech_pb2_grpc, stage_pb2, stage_pb2_grpc
from antiphon.wire import checksum

if TYPE_CHECKING:
    from antiphon.v1.demand_pb2_grpc import DemandServiceAsyncStub
    from antiphon.v1.speech_pb2_grpc import SpeechServiceAsyncStub
    from antiphon.v1.stage_pb2_grpc import StageServiceAsyncStub

STAGE_SERVICE = stage_pb2.DESCRIPTOR.services_by_name["StageService"].full_name


def stage_stub(channel: grpc.aio.Channel) -> StageServiceAsyncStub:
    """Return a stub of `StageService` that uses checksums. If a response is corrupted, a
    `CorruptMessage` is returned in its place.
    """
    stub: Any = stage_pb2_grpc.StageServiceStub(channel)
    for name, connect, kind in (
        ("RunSession", channel.stream_stream, session_pb2.SessionResponse),
        ("RunSessions", channel.stream_stream, stage_pb2.LineResponse),
        ("WatchLoad", channel.unary_stream, stage_pb2.StageLoad),
        ("Describe", channel.unary_unary, stage_pb2.DescribeResponse),
    ):
        path = f"/{STAGE_SERVICE}/{name}"
        setattr(stub, name, connect(path, checksum.to_field, checksum.field_reader(kind)))
    stub.Link = channel.stream_stream(
        f"/{STAGE_SERVICE}/Link", checksum.to_bytes, checksum.reader(stage_pb2.LinkResponse)
    )
    return cast("StageServiceAsyncStub", stub)


def speech_stub(channel: grpc.aio.Channel) -> SpeechServiceAsyncStub:
    """Return a stub of `SpeechService`."""
    return cast("SpeechServiceAsyncStub", speech_pb2_grpc.SpeechServiceStub(channel))


def demand_stub(channel: grpc.aio.Channel) -> DemandServiceAsyncStub:
    """Return a stub of `DemandService`."""
    return cast("DemandServiceAsyncStub", demand_pb2_grpc.DemandServiceStub(channel))
