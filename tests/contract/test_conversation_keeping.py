"""What conversations hold is bounded over all of them, given back, and counted."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio

import antiphon
from tests.contract.converse_client import until, until_failed
from tests.contract.fake_stages import USUAL, twice
from tests.contract.realtime_client import Realtime, realtime
from tests.contract.served_gateway import ServedGateway, answering, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECOND_BYTES = 48_000
SECOND = base64.b64encode(bytes(SECOND_BYTES)).decode()
HELD = 'antiphon_gateway_memory_bytes{holder="conversations"}'


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def keeping() -> AsyncIterator[ServedGateway]:
    """One whose conversations hold two seconds and a half together, and retrieve one."""
    limits = {
        "max_memory_bytes": 5 * SECOND_BYTES,
        "max_retrieved_bytes": 3 * SECOND_BYTES // 2,
    }
    async with serve_gateway(**limits) as served:
        yield served


async def append(client: Realtime, seconds: int = 1) -> None:
    for _ in range(seconds):
        await client.send("input_audio_buffer.append", audio=SECOND)


async def commit(client: Realtime) -> str:
    await client.send("input_audio_buffer.commit")
    item_id: str = (await client.until("conversation.item.done"))["item"]["id"]
    return item_id


async def test_conversations_share_what_they_may_hold_and_give_it_back(
    keeping: ServedGateway,
) -> None:
    assert await keeping.metric(HELD) == 0
    before = answering()
    async with realtime(keeping) as one, realtime(keeping) as other:
        for client in (one, other):
            await client.end_turns_itself()
        await append(one)
        item_id = await commit(one)
        await append(one)
        await one.say("Hi")
        await append(other)
        error = (await other.until("error"))["error"]
        assert error["code"] == "resource_exhausted"
        assert "conversations have used up their share of gateway.limits" in error["message"]
        # It goes on, and there is room again when the other lets go of some.
        await other.say("Hi")
        await one.send("conversation.item.delete", item_id=item_id)
        await one.until("conversation.item.deleted")
        await append(other)
        await commit(other)
        assert 2 * SECOND_BYTES < await keeping.metric(HELD) < 3 * SECOND_BYTES
        mine = answering() - before
        assert len(mine) == 2
    await asyncio.wait(mine)
    assert await keeping.metric("antiphon_gateway_conversations") == 0
    assert await keeping.metric(HELD) == 0


async def test_item_that_is_given_counts_as_audio_does(keeping: ServedGateway) -> None:
    part = {"type": "input_audio", "audio": base64.b64encode(bytes(3 * SECOND_BYTES)).decode()}
    item = {"type": "message", "role": "user", "content": [part]}
    async with realtime(keeping) as client:
        await client.send("conversation.item.create", item=item)
        assert "max_memory_bytes" in (await client.until("error"))["error"]["message"]
        await client.say("Still here")


async def test_large_item_is_retrieved_without_its_recording(keeping: ServedGateway) -> None:
    async with realtime(keeping) as client:
        await client.end_turns_itself()
        for seconds, whole in ((1, True), (2, False)):
            await append(client, seconds)
            item_id = await commit(client)
            await client.send("conversation.item.retrieve", item_id=item_id)
            item = (await client.until("conversation.item.retrieved"))["item"]
            (content,) = item["content"]
            assert content["type"] == "input_audio"
            assert ("audio" in content) is whole
            if whole:
                assert len(base64.b64decode(content["audio"])) == SECOND_BYTES
            await client.send("conversation.item.delete", item_id=item_id)
            await client.until("conversation.item.deleted")


async def test_conversations_are_counted(served: ServedGateway) -> None:
    names = (
        'turns_total{api="realtime"}',
        'responses_total{api="realtime",status="completed"}',
        'conversation_refusals_total{api="realtime",code="invalid_argument"}',
        'turn_ttfa_seconds_count{api="realtime"}',
    )

    async def counted() -> list[float]:
        return [await served.metric(f"antiphon_gateway_{name}") for name in names]

    for role, script in USUAL.items():
        served.fakes[role].script = twice(script)
    before = np.array(await counted())
    async with realtime(served) as client:
        await client.end_turns_itself()
        assert await served.metric("antiphon_gateway_conversations") == 1
        await append(client)
        await commit(client)
        for _ in range(2):
            # Only the first answers what was spoken.
            await client.send("response.create")
            await client.until("response.done")
        await client.send("conversation.item.create", item={"type": "message", "role": "bell"})
        await client.until("error")
        assert (np.array(await counted()) - before).tolist() == [1, 2, 1, 1]


async def test_conversations_over_grpc_are_counted(
    served: ServedGateway, client: antiphon.AsyncClient
) -> None:
    names = (
        'turns_total{api="grpc"}',
        'responses_total{api="grpc",status="completed"}',
        'conversation_refusals_total{api="grpc",code="not_found"}',
        'turn_ttfa_seconds_count{api="grpc"}',
    )

    async def counted() -> list[float]:
        return [await served.metric(f"antiphon_gateway_{name}") for name in names]

    before = np.array(await counted())
    async with client.converse() as call:
        await call.send_audio(bytes(SECOND_BYTES))
        await call.commit_audio()
        await call.respond()
        await until(call, antiphon.ResponseDone)
        await call.delete("nothing", reference="wrong")
        assert (await until_failed(call)).reference == "wrong"
        assert (np.array(await counted()) - before).tolist() == [1, 1, 1, 1]


async def test_audio_that_finds_no_room_stays_in_the_buffer() -> None:
    async with serve_gateway(max_parts=1) as full, realtime(full) as client:
        await client.end_turns_itself()
        await client.say("Hi")
        said = client.events[-1]["item"]["id"]
        await client.send("input_audio_buffer.commit")
        empty = (await client.until("error"))["error"]["code"]
        assert empty == "input_audio_buffer_commit_empty"
        await append(client)
        await client.send("input_audio_buffer.commit")
        assert (await client.until("error"))["error"]["code"] == "resource_exhausted"
        await client.send("conversation.item.delete", item_id=said)
        await client.until("conversation.item.deleted")
        item_id = await commit(client)
        await client.send("conversation.item.retrieve", item_id=item_id)
        item = (await client.until("conversation.item.retrieved"))["item"]
        assert len(base64.b64decode(item["content"][0]["audio"])) == SECOND_BYTES
