"""Ends of `Converse` calls whose clients are still connected."""

from __future__ import annotations

from collections.abc import Awaitable

import grpc
import pytest

import antiphon
from antiphon.errors import Unavailable
from antiphon.v1 import converse_pb2
from antiphon.wire.status import error_from_rpc
from antiphon.wire.stubs import speech_stub
from antiphon_gateway.endpoints.grpc.converse import endpoint
from antiphon_gateway.endpoints.sending import send_in_time
from tests.contract.converse_client import said
from tests.contract.served_gateway import ServedGateway, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

OPENING = converse_pb2.ConverseRequest(open={})
ADDING = converse_pb2.ConverseRequest(
    create_item={"item": {"role": "user", "contents": [{"text": "Hello"}]}}
)


class FailingWrites:
    """In place of `send_in_time`: gRPC can't send the message with this number."""

    def __init__(self, number: int) -> None:
        self._left = number

    async def __call__(self, sending: Awaitable[None], timeout_s: float) -> None:
        self._left -= 1
        if self._left == -1:
            sending.close()  # type: ignore[attr-defined]
            raise grpc.aio.UsageError("as if gRPC could not send it")
        await send_in_time(sending, timeout_s)


@pytest.mark.parametrize("sent", [0, 1], ids=["the first", "a later one"])
async def test_call_whose_event_can_not_be_sent_ends_with_an_error(
    sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve_gateway() as served:
        monkeypatch.setattr(endpoint, "send_in_time", FailingWrites(sent))
        async with grpc.aio.insecure_channel(served.gateway.grpc_address) as channel:
            call = speech_stub(channel).Converse()
            await call.write(OPENING)
            if sent:
                await call.write(ADDING)
            for _ in range(sent):
                assert await call.read() is not grpc.aio.EOF
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await call.read()
        error = error_from_rpc(ended.value)
        assert isinstance(error, Unavailable)
        assert "could not be sent" in error.message


async def test_conversation_goes_on_when_an_event_could_not_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def converse(served: ServedGateway) -> str:
        retry = antiphon.Retry(attempts=3, pause_s=0.01)
        async with (
            antiphon.AsyncClient(served.gateway.grpc_address, retry=retry) as client,
            client.converse(spoken=False) as call,
        ):
            return await said(call, "Hello")

    async with serve_gateway() as served:
        for number in range(4):
            monkeypatch.setattr(endpoint, "send_in_time", FailingWrites(number))
            assert await converse(served)
