"""Typed stubs for asyncio channels: the generated classes serve both kinds of channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import grpc

from antiphon.v1 import demand_pb2_grpc, speech_pb2_grpc, stage_pb2_grpc

if TYPE_CHECKING:
    from antiphon.v1.demand_pb2_grpc import DemandServiceAsyncStub
    from antiphon.v1.speech_pb2_grpc import SpeechServiceAsyncStub
    from antiphon.v1.stage_pb2_grpc import StageServiceAsyncStub


def stage_stub(channel: grpc.aio.Channel) -> StageServiceAsyncStub:
    """A stub of `StageService`."""
    return cast("StageServiceAsyncStub", stage_pb2_grpc.StageServiceStub(channel))


def speech_stub(channel: grpc.aio.Channel) -> SpeechServiceAsyncStub:
    """A stub of `SpeechService`."""
    return cast("SpeechServiceAsyncStub", speech_pb2_grpc.SpeechServiceStub(channel))


def demand_stub(channel: grpc.aio.Channel) -> DemandServiceAsyncStub:
    """A stub of `DemandService`."""
    return cast("DemandServiceAsyncStub", demand_pb2_grpc.DemandServiceStub(channel))
