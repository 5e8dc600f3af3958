"""Options of the model, and sampling by stage, in conversations."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

import antiphon
from antiphon.errors import InvalidArgument
from antiphon.values.options import Option, OptionKind, OptionValue
from antiphon.wire.options import option_to_proto, option_values_from_proto
from tests.contract.converse_client import said, until, until_failed
from tests.contract.fake_stages import ROLES, TALKER, THINKER, USUAL, twice
from tests.contract.realtime_client import realtime
from tests.contract.served_gateway import ServedGateway, serve_gateway, tell_anew
from tests.contract.test_audio_input import tone, wav
from tests.contract.two_gateways import two_gateways

pytestmark = pytest.mark.asyncio(loop_scope="session")

TASK = Option("task", OptionKind.TEXT, choices=("dialogue", "speech"))
STYLE = Option("style", OptionKind.TEXT)
PACE = Option("pace", OptionKind.NUMBER, least=0.5, most=2.0)
VOICE = Option("voice_clip", OptionKind.AUDIO, sample_rate_hz=8_000, max_s=1.0)
OPTIONS = tuple(map(option_to_proto, (TASK, STYLE, PACE, VOICE)))
CLIP = wav(tone(8_000), 8_000)
SAMPLES = len(tone(8_000))
GIVEN = {"task": "speech", "style": "Softly.", "pace": 1.5}
RETRY = antiphon.Retry(attempts=8, pause_s=0.01)


@pytest_asyncio.fixture(loop_scope="session")
async def opted() -> AsyncIterator[ServedGateway]:
    """A gateway to stages of which the thinker has options."""
    async with serve_gateway() as served:
        served.gateway.fleet[THINKER].require().options.extend(OPTIONS)
        tell_anew(served.gateway)
        yield served


def options_of(served: ServedGateway) -> dict[str, OptionValue]:
    """Those of the latest segment."""
    return option_values_from_proto(served.fakes[THINKER].sessions[-1].segment.options)


async def test_options_hold_until_they_are_replaced_or_removed(opted: ServedGateway) -> None:
    for role in ROLES:
        opted.fakes[role].script = twice(twice(USUAL[role]))
    async with (
        antiphon.AsyncClient(opted.gateway.grpc_address) as client,
        client.converse(spoken=False, options=GIVEN | {"voice_clip": CLIP}) as call,
    ):
        assert call.opened.settings.options == GIVEN | {"voice_clip": b""}
        await said(call, "Hi")
        await call.respond()
        await until(call, antiphon.ResponseDone)
        heard = options_of(opted)
        clip = heard.pop("voice_clip")
        assert isinstance(clip, np.ndarray)
        assert len(clip) == SAMPLES
        assert heard == GIVEN
        await call.update(options={"style": "Loudly.", "voice_clip": None})
        held = (await until(call, antiphon.SettingsUpdated)).settings
        assert held.options == GIVEN | {"style": "Loudly."}
        await call.respond(options={"pace": 0.5, "task": None})
        await until(call, antiphon.ResponseDone)
        assert options_of(opted) == {"style": "Loudly.", "pace": 0.5}
        await call.respond()
        await until(call, antiphon.ResponseDone)
        assert options_of(opted) == GIVEN | {"style": "Loudly."}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"pitch": "high"}, "settings.options.pitch"),
        ({"task": "song"}, "settings.options.task"),
        ({"pace": 3}, "settings.options.pace"),
        ({"pace": "slow"}, "settings.options.pace"),
        ({"voice_clip": "a voice"}, "settings.options.voice_clip"),
        ({"style": CLIP}, "settings.options.style"),
        ({f"o{number}": "x" for number in range(65)}, "settings.options"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_an_option_that_cannot_be_is_an_error_and_changes_nothing(
    opted: ServedGateway, options: dict[str, Any], field: str
) -> None:
    async with antiphon.AsyncClient(opted.gateway.grpc_address) as client:
        async with client.converse(options=GIVEN) as call:
            await call.update(options=options)
            failed = (await until_failed(call)).error
            assert failed.field == field
            assert failed.message.startswith(f"{field}: ")
            await call.update()
            assert (await until(call, antiphon.SettingsUpdated)).settings.options == GIVEN
        with pytest.raises(InvalidArgument) as caught:
            async with client.converse(options=options):
                raise AssertionError("it is open")
        assert caught.value.field == field


async def test_a_recording_that_cannot_be_read_fails_the_response(opted: ServedGateway) -> None:
    async with (
        antiphon.AsyncClient(opted.gateway.grpc_address) as client,
        client.converse(options={"voice_clip": b"no recording"}) as call,
    ):
        await said(call, "Hi")
        await call.respond()
        failed = (await until(call, antiphon.ResponseDone)).response
        assert failed.error is not None
        assert failed.error.field == "settings.options.voice_clip"


async def test_realtime_sessions_and_responses_have_options_and_sampling(
    opted: ServedGateway,
) -> None:
    for role in ROLES:
        opted.fakes[role].script = twice(USUAL[role])
    clip = {"data": base64.b64encode(CLIP).decode(), "format": "wav"}
    sampling = {"": {"temperature": 0.5, "seed": 4}, TALKER: {"top_k": 3}}
    async with realtime(opted) as call:
        own: dict[str, Any] = {"options": GIVEN | {"voice_clip": clip}, "sampling": sampling}
        await call.send("session.update", session={"type": "realtime", "antiphon": own})
        session = (await call.until("session.updated"))["session"]
        shown = {"options": GIVEN | {"voice_clip": {"data": ""}}, "sampling": sampling}
        assert session["antiphon"] == shown
        # What was told may be sent back as it is.
        back = {"type": "realtime", "antiphon": shown}
        await call.send("session.update", session=back)
        assert (await call.until("session.updated"))["session"]["antiphon"] == shown
        await call.say("Hi")
        await call.send("response.create")
        await call.until("response.done")
        heard = options_of(opted)
        assert len(np.asarray(heard.pop("voice_clip"))) == SAMPLES
        assert heard == GIVEN
        drawn = opted.fakes[THINKER].sessions[-1].segment.sampling
        assert (drawn[THINKER].temperature, drawn[THINKER].seed) == (0.5, 4)
        assert drawn[TALKER].top_k == 3
        other = {"options": {"style": "Loudly.", "voice_clip": None, "task": None}}
        await call.send("response.create", response={"antiphon": other})
        await call.until("response.done")
        assert options_of(opted) == {"style": "Loudly.", "pace": 1.5}
        cleared = {"sampling": {TALKER: {}}, "options": dict.fromkeys((*GIVEN, "voice_clip"))}
        await call.send("session.update", session={"type": "realtime", "antiphon": cleared})
        session = (await call.until("session.updated"))["session"]
        assert session["antiphon"] == {"sampling": {"": sampling[""]}}


MANY_STAGES = {"sampling": {f"s{number}": {"seed": 1} for number in range(17)}}


@pytest.mark.parametrize(
    ("own", "field"),
    [
        ({"options": {"task": "song"}}, "session.antiphon.options.task"),
        ({"options": {"nothing": 1}}, "session.antiphon.options.nothing"),
        ({"options": {f"o{number}": 1 for number in range(65)}}, "session.antiphon.options"),
        ({"options": {"task": True}}, "session.antiphon.options.task"),
        ({"options": {"voice_clip": {"data": "?"}}}, "session.antiphon.options.voice_clip"),
        ({"sampling": {TALKER: {"top_p": 2}}}, "session.antiphon.sampling.talker.top_p"),
        (MANY_STAGES, "session.antiphon.sampling"),
        ({"answer_every_s": 0.01}, "session.antiphon.answer_every_s"),
    ],
    ids=["choice", "unknown", "many", "kind", "base64", "sampling", "stages", "clock"],
)
async def test_realtime_names_the_option_that_cannot_be(
    opted: ServedGateway, own: dict[str, Any], field: str
) -> None:
    async with realtime(opted) as call:
        audio = {"input": {"turn_detection": None}}
        session = {"type": "realtime", "antiphon": own, "audio": audio}
        await call.send("session.update", session=session)
        error = (await call.until("error"))["error"]
        assert error["param"] == field
        assert error["message"].startswith(f"{field}:")
        assert error["message"].count("antiphon") == 1
        await call.send("session.update", session={"type": "realtime"})
        assert "antiphon" not in (await call.until("session.updated"))["session"]


async def test_realtime_names_the_option_of_a_response_that_cannot_be(
    opted: ServedGateway,
) -> None:
    async with realtime(opted) as call:
        await call.say("Hi")
        await call.send("response.create", response={"antiphon": MANY_STAGES})
        error = (await call.until("error"))["error"]
        assert error["param"] == "response.antiphon.sampling"


async def test_options_move_to_another_gateway_with_their_recording(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as two:
        for served in (two.first, two.second):
            served.gateway.fleet[THINKER].require().options.extend(OPTIONS)
            tell_anew(served.gateway)
        async with (
            antiphon.AsyncClient(two.addresses, retry=RETRY) as client,
            client.converse(spoken=False, options=GIVEN | {"voice_clip": CLIP}) as call,
        ):
            await said(call, "Hello")
            await two.lose_first()
            opened = await until(call, antiphon.ConversationOpened)
            assert opened.settings.options == GIVEN | {"voice_clip": b""}
            await said(call, "And now?")
            await call.respond()
            assert (await until(call, antiphon.ResponseDone)).response.status == "completed"
            heard = options_of(two.second)
            assert len(np.asarray(heard.pop("voice_clip"))) == SAMPLES
            assert heard == GIVEN
