"""Options where not every stage takes part, or was ever there; see test_other_family.py too."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.values.conversation import ConversationMessage, TextPart
from antiphon.values.options import Option, OptionKind
from antiphon.wire.options import option_to_proto, option_values_from_proto
from antiphon_gateway.orders.order import Order
from antiphon_gateway.server import Gateway
from tests.contract.fake_stages import (
    CODE2WAV,
    INPUT_RATE_HZ,
    ROLES,
    THINKER,
    USUAL,
    FakeStages,
    describe,
    twice,
)
from tests.contract.served_gateway import ServedGateway, deployment_of, serve_gateway, tell_anew
from tests.contract.test_audio_input import tone, wav

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOM = Option("room", OptionKind.TEXT, choices=("hall", "studio"))
SAMPLE = Option("sample", OptionKind.AUDIO, sample_rate_hz=8_000, max_s=1.0)


@pytest_asyncio.fixture(loop_scope="session")
async def own_gateway() -> AsyncIterator[ServedGateway]:
    """An endpoint to stages of which the last has options."""
    async with serve_gateway(max_recordings=2) as served:
        told = served.gateway.fleet[CODE2WAV].require()
        told.options.extend(map(option_to_proto, (ROOM, SAMPLE)))
        tell_anew(served.gateway)
        yield served


async def test_an_option_of_a_stage_that_takes_no_part_is_checked_and_not_sent(
    own_gateway: ServedGateway,
) -> None:
    response = await own_gateway.chat(options={"room": "hall"})
    assert response.status_code == 200, response.text
    (session,) = own_gateway.fakes[THINKER].sessions
    assert not session.segment.options
    assert not own_gateway.fakes[CODE2WAV].sessions
    response = await own_gateway.chat(options={"room": "bath"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "options.room")


async def test_an_option_is_known_while_its_stage_is_down(own_gateway: ServedGateway) -> None:
    stages = own_gateway.gateway.fleet
    await own_gateway.fakes[CODE2WAV].set_serving(False)
    while stages[CODE2WAV].ready:
        await stages.wait_changed()
    assert (await own_gateway.chat(options={"room": "hall"})).status_code == 200
    response = await own_gateway.chat(options={"room": "bath"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "options.room")


async def test_an_option_may_be_that_of_a_stage_that_was_never_reached() -> None:
    async with FakeStages() as fakes:
        await fakes[CODE2WAV].die()
        async with Gateway(deployment_of(fakes)) as gateway:
            while not all(stage.ready for stage in gateway.fleet if stage.role != CODE2WAV):
                await gateway.fleet.wait_changed()
            served = ServedGateway(fakes, gateway)
            try:
                assert (await served.chat()).status_code == 200
                response = await served.chat(options={"room": "hall"})
            finally:
                await served.close()
    assert response.status_code == 503
    assert CODE2WAV in response.json()["error"]["message"]


async def test_recordings_of_messages_and_options_are_counted_together(
    own_gateway: ServedGateway,
) -> None:
    data = base64.b64encode(wav(tone(INPUT_RATE_HZ), INPUT_RATE_HZ)).decode()
    recording = {"data": data, "format": "wav"}
    part = {"type": "input_audio", "input_audio": recording}
    for count, status in ((1, 200), (2, 400)):
        messages = [{"role": "user", "content": [part] * count}]
        response = await own_gateway.chat(messages=messages, options={"sample": recording})
        assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == "options.sample"
    assert "more than 2 recordings" in error["message"]


async def test_each_segment_of_a_session_has_options_of_its_own(own_gateway: ServedGateway) -> None:
    for role in ROLES:
        own_gateway.fakes[role].script = twice(USUAL[role])
    message = ConversationMessage("user", (TextPart("Hi"),))
    heard = []
    calls = own_gateway.gateway.calls
    with pytest.raises(InvalidArgument, match="unknown option"):
        await calls.prepare(Order((message,), options={"key": "C"}))
    async with calls.session(await calls.prepare(Order((message,)))) as session:
        for room, last in (("hall", False), ("studio", True)):
            prepared = await calls.prepare(Order((message,), options={"room": room}))
            segment = await session.ask(prepared, last=last)
            _ = [event async for event in segment]
            heard.append(own_gateway.fakes[CODE2WAV].sessions[-1].segment)
            assert not own_gateway.fakes[THINKER].sessions[-1].segment.options
    told = [option_values_from_proto(each.options) for each in heard]
    assert told == [{"room": "hall"}, {"room": "studio"}]


async def test_stages_do_not_fit_together_when_an_option_has_two_kinds() -> None:
    async with FakeStages() as fakes:
        for role, kind in ((THINKER, OptionKind.TEXT), (CODE2WAV, OptionKind.NUMBER)):
            fakes[role].description = describe(role)
            fakes[role].description.options.append(option_to_proto(Option("room", kind)))
        async with Gateway(deployment_of(fakes)) as gateway:
            while not all(stage.ready for stage in gateway.fleet):
                await gateway.fleet.wait_changed()
            fault = gateway.fleet.fault()
    assert isinstance(fault, FailedPrecondition)
    assert "describes the option room differently" in fault.message
