from __future__ import annotations

import pytest

from tests.contract.fake_stages import ROLES
from tests.contract.realtime_client import Realtime, Told, realtime
from tests.contract.served_gateway import ServedGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def answer(client: Realtime) -> None:
    await client.say("Hello")
    await client.send("response.create")
    await client.until("response.done")


async def test_who_asks_is_told_what_each_stage_took(served: ServedGateway) -> None:
    async with realtime(served) as client:
        await client.end_turns_itself()
        own = {"type": "realtime", "antiphon": {"timeline": True}}
        await client.send("session.update", session=own)
        await client.until("session.updated")
        await answer(client)
        # Not one of OpenAI's, by name and place: those have all come before.
        told: Told = await client.next_of_any_kind()
        done = client.events[-1]["response"]
    assert (told["type"], told["response_id"]) == ("antiphon.response.timeline", done["id"])
    assert told["event_id"]
    assert {stage["role"] for stage in told["stages"]} == set(ROLES)
    for stage in told["stages"]:
        assert 0 <= stage["first_output_s"] <= stage["last_output_s"]
        assert stage["output_positions"] > 0


async def test_nobody_else_is(served: ServedGateway) -> None:
    async with realtime(served) as client:
        await client.end_turns_itself()
        await answer(client)
        # Every event is validated as one of OpenAI's.
        await client.send("input_audio_buffer.clear")
        await client.until("input_audio_buffer.cleared")
        kinds = [event["type"] for event in client.events]
        assert kinds[-2:] == ["response.done", "input_audio_buffer.cleared"]
