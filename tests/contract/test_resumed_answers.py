"""An answer that a client has begun to hear from a gateway that is lost, asked for of another."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack
from typing import Any

import grpc
import numpy as np
import pytest

import antiphon
from antiphon.client.events import AudioDelta, TextDelta
from antiphon.errors import DataLoss, InvalidArgument
from antiphon.v1 import speech_pb2
from antiphon.wire.convert import error_from_proto
from antiphon.wire.status import error_from_rpc
from antiphon.wire.stubs import speech_stub
from tests.contract.fake_stages import (
    CODE2WAV,
    FRAMES,
    ROLES,
    TEXTS,
    FakeStages,
    Session,
    samples_of,
)
from tests.contract.served_gateway import ServedGateway, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

SEED = (1 << 63) - 3
SAMPLES = samples_of(sum(FRAMES), 0)


async def events_of(served: ServedGateway, **delivered: Any) -> list[speech_pb2.GenerateResponse]:
    """What comes for a client that has so much."""
    parts = [speech_pb2.Part(text="Hi")]
    request = speech_pb2.GenerateRequest(
        messages=[speech_pb2.Message(role="user", parts=parts)], include_ids=True
    )
    if delivered:
        request.delivered.CopyFrom(speech_pb2.DeliveredPart(**delivered))
    async with grpc.aio.insecure_channel(served.gateway.grpc_address) as channel:
        return [event async for event in speech_stub(channel).Generate(request)]


def seeds(served: ServedGateway) -> set[int]:
    """Those of all stages in the last session."""
    return {served.fakes[role].sessions[-1].segment.sampling[role].seed for role in ROLES}


async def test_the_rest_is_made_with_the_seed_that_was_told(served: ServedGateway) -> None:
    whole = await events_of(served)
    told = whole[0].started.drawn_seed
    assert seeds(served) == {told}
    text = "".join(TEXTS)
    rest = await events_of(
        served,
        drawn_seed=told,
        characters=len(text) - 2,
        text_sha256=hashlib.sha256(text[:-2].encode()).digest(),
        samples=len(SAMPLES) - 5,
    )
    assert seeds(served) == {told}
    assert (rest[0].started.drawn_seed, rest[0].started.model) == (told, whole[0].started.model)
    assert "".join(each.text.text for each in rest) == text[-2:]
    samples = np.frombuffer(b"".join(each.audio.float32 for each in rest), "<f4")
    assert samples.tolist() == SAMPLES[-5:].tolist()
    assert rest[-1].finished.usage == whole[-1].finished.usage


async def test_text_that_is_not_the_answers_ends_it(served: ServedGateway) -> None:
    digest = hashlib.sha256(b"?").digest()
    *_, last = await events_of(served, drawn_seed=SEED, characters=1, text_sha256=digest)
    error = error_from_proto(last.error)
    assert isinstance(error, DataLoss)
    assert error.field == "delivered"
    assert seeds(served) == {SEED}


async def test_a_seed_that_no_gateway_has_told_is_refused(served: ServedGateway) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await events_of(served, drawn_seed=1 << 63)
    error = error_from_rpc(caught.value)
    assert isinstance(error, InvalidArgument)
    assert error.field == "delivered.drawn_seed"


async def hang(session: Session) -> None:
    """A code2wav that makes the first piece alone."""
    await session.opened()
    await session.audio(FRAMES[0], 0)
    await asyncio.Event().wait()


async def test_another_gateway_goes_on_with_what_one_that_stops_leaves() -> None:
    """Both are behind one name; the client finds the other one itself."""

    def prepare(fakes: FakeStages) -> None:
        fakes[CODE2WAV].script = hang

    text, samples = "", b""
    async with AsyncExitStack() as first, serve_gateway() as second:
        stopping = await first.enter_async_context(serve_gateway(prepare))
        addresses = f"ipv4:{stopping.gateway.grpc_address},{second.gateway.grpc_address}"
        retry = antiphon.Retry(pause_s=0.01)
        async with antiphon.AsyncClient(addresses, retry=retry) as client:
            async for event in client.generate("Hi", include_ids=True):
                if isinstance(event, TextDelta):
                    text += event.text
                elif isinstance(event, AudioDelta):
                    samples += event.float32
                    await first.aclose()
        assert len(stopping.fakes.sessions()) == len(second.fakes.sessions()) == len(ROLES)
    assert text == "".join(TEXTS)
    assert np.frombuffer(samples, "<f4").tolist() == SAMPLES.tolist()
