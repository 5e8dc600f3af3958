"""Answers by the clock: so many seconds of what is heard are a message of their own."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

import antiphon
from antiphon.values.conversation import AudioPart, from_tensors
from tests.contract.converse_client import until
from tests.contract.fake_stages import ROLES, THINKER, USUAL, Session, think, twice
from tests.contract.realtime_client import realtime
from tests.contract.served_gateway import ServedGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

RATE_HZ = 16_000
EVERY_S = 0.5
SLICE = round(EVERY_S * RATE_HZ)


def spoken(samples: int) -> bytes:
    return (np.arange(samples) % 3000).astype("<i2").tobytes()


@pytest.fixture
def heard(served: ServedGateway) -> list[list[str]]:
    """Of each answer: whose messages it was given, and that the recordings are slices."""
    told: list[list[str]] = []

    async def note(session: Session) -> None:
        assert session.input is not None
        given = from_tensors(session.input.tensors)
        assert all(len(each) == SLICE for each in given.recordings)
        whose = ["slice" if isinstance(m.parts[0], AudioPart) else m.role for m in given.messages]
        told.append(whose)
        await think(session)

    for role in ROLES:
        script = note if role == THINKER else USUAL[role]
        served.fakes[role].script = twice(twice(script))
    return told


async def test_every_slice_is_a_message_and_answered(
    served: ServedGateway, client: antiphon.AsyncClient, heard: list[list[str]]
) -> None:
    turns = antiphon.TimedTurns(EVERY_S)
    async with client.converse(spoken=False, turns=turns) as call:
        assert call.opened.settings.turns == turns
        await call.send_audio(spoken(SLICE - 1), RATE_HZ)
        await call.send_audio(spoken(1), RATE_HZ)
        await until(call, antiphon.ResponseDone)
        # Two at once: the second waits for the answer to the first.
        await call.send_audio(spoken(2 * SLICE + 7), RATE_HZ)
        for _ in range(2):
            await until(call, antiphon.ResponseDone)
        await call.update(turns=None)
        assert (await until(call, antiphon.SettingsUpdated)).settings.turns is None
        await call.commit_audio()
        item = (await until(call, antiphon.ItemCreated)).item
        assert item.parts == (antiphon.RecordedPart(b"", RATE_HZ, 7 / RATE_HZ),)
    assert heard == [
        ["slice"],
        ["slice", "assistant", "slice"],
        ["slice", "assistant", "slice", "assistant", "slice"],
    ]


async def test_client_that_has_finished_gets_the_answers_to_all_slices(
    client: antiphon.AsyncClient, heard: list[list[str]]
) -> None:
    async with client.converse(spoken=False, turns=antiphon.TimedTurns(EVERY_S)) as call:
        await call.send_audio(spoken(3 * SLICE), RATE_HZ)
        call.finish()
        done = [event async for event in call if isinstance(event, antiphon.ResponseDone)]
        assert len(done) == 3
    assert [len(each) for each in heard] == [1, 3, 5]


@pytest.mark.parametrize("every_s", [0.4, 50_000.0])
async def test_length_that_no_slice_may_have_is_refused(
    client: antiphon.AsyncClient, every_s: float
) -> None:
    async with client.converse(spoken=False) as call:
        await call.update(turns=antiphon.TimedTurns(every_s))
        refused = await anext(aiter(call))
        assert isinstance(refused, antiphon.CommandFailed)
        assert "answer_every_s" in refused.error.message
        assert "from 0.5 to" in refused.error.message


def session(turns: dict[str, str] | None, every_s: float | None) -> dict[str, Any]:
    audio = {"input": {"turn_detection": turns}}
    return {"type": "realtime", "audio": audio, "antiphon": {"answer_every_s": every_s}}


async def test_realtime_client_asks_for_it_by_an_extension(served: ServedGateway) -> None:
    for role in ROLES:
        served.fakes[role].script = twice(USUAL[role])
    async with realtime(served) as client:
        await client.send("session.update", session=session({"type": "server_vad"}, 1.0))
        refused = (await client.until("error"))["error"]
        assert refused["param"] == "session.antiphon.answer_every_s"
        assert "turn_detection to null" in refused["message"]
        await client.send("session.update", session=session(None, 1.0))
        told = (await client.until("session.updated"))["session"]
        assert told["antiphon"] == {"answer_every_s": 1.0}
        second = base64.b64encode(spoken(24_000)).decode()
        for _ in range(2):
            await client.send("input_audio_buffer.append", audio=second)
            await client.until("input_audio_buffer.committed")
            await client.until("response.done")
        await client.send("session.update", session=session({"type": "server_vad"}, None))
        assert "antiphon" not in (await client.until("session.updated"))["session"]
