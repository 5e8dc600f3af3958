"""What is sent, remembered and saved; the server is a fake that says what it is told to."""

from __future__ import annotations

import io
import sys
import wave
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, cast

import pytest

from antiphon.client.aio import AsyncClient
from antiphon.client.events import AudioDelta, Event, Finished, FunctionCallDelta, TextDelta
from antiphon.client.request import Message
from antiphon.deployment.schema import GatewayConfig
from antiphon.values.answer import FunctionCall
from antiphon_tools.demo.conversation import REMEMBERED_TURNS, DemoConversation
from antiphon_tools.demo.display import Display
from antiphon_tools.demo.script import DONE, SCRIPT, SET_LIGHT, SPOKEN, Question
from models.recipe.functions import FUNCTIONS
from tests.unit.tools.demo.answers import RATE_HZ, pcm16, turn

STAGES = ("thinker", "talker", "code2wav")


class FakeGeneration:
    """An answer that is there at once."""

    sample_rate_hz = RATE_HZ

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def __aiter__(self) -> AsyncIterator[Event]:
        for event in self._events:
            yield event


class FakeClient:
    """Answers "1", "2", ... and a second of sound; keeps what it was asked."""

    def __init__(self, *, silent: bool = False, calls: Sequence[FunctionCall] = ()) -> None:
        self._calls = tuple(calls)
        self.asked: list[tuple[list[Message], dict[str, Any]]] = []
        self._silent = silent

    def generate(self, messages: Sequence[Message], **options: Any) -> FakeGeneration:
        self.asked.append((list(messages), options))
        reply = turn().answer.reply
        sound = [] if self._silent else [AudioDelta(pcm16(1.0, 9000), 0)]
        if options["functions"] and messages[-1].role == "user":
            sound = [FunctionCallDelta(0, self._calls)]
        end = Finished(reply.finish_reason, reply.usage, reply.reports)
        return FakeGeneration([TextDelta(str(len(self.asked))), *sound, end])


def conversation(client: FakeClient, out: Path) -> DemoConversation:
    return DemoConversation(cast(AsyncClient, client), ("low", "high"), out, Display(io.StringIO()))


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def seconds_of(path: Path) -> float:
    with wave.open(str(path)) as file:
        seconds: float = file.getnframes() / file.getframerate()
    return seconds


async def test_question_comes_with_what_was_said_before_it(tmp_path: Path) -> None:
    client = FakeClient()
    talk = conversation(client, tmp_path)
    for text in "abcdef":
        await talk.say(Question(text))
    assert client.asked[0][0] == [Message.user("a")]
    assert client.asked[1][0] == [Message.user("a"), Message.assistant("1"), Message.user("b")]
    last = client.asked[-1][0]
    assert len(last) == 2 * REMEMBERED_TURNS + 1
    assert last[-3:] == [Message.user("e"), Message.assistant("5"), Message.user("f")]
    assert last[0].role == "user"


async def test_voice_is_the_servers_at_the_index_that_a_question_asks_for(tmp_path: Path) -> None:
    client = FakeClient()
    talk = conversation(client, tmp_path)
    turns = [await talk.say(Question("a", voice)) for voice in (0, 1, 2)]
    assert [options["voice"] for _, options in client.asked] == ["low", "high", "low"]
    assert [each.voice for each in turns] == ["low", "high", "low"]


async def test_spoken_question_is_sent_as_its_recording(tmp_path: Path) -> None:
    client, shown = FakeClient(), io.StringIO()
    talk = DemoConversation(cast(AsyncClient, client), ("low",), tmp_path, Display(shown))
    await talk.say(Question("a", recording=SPOKEN))
    (transcribed, options), (asked, _) = client.asked
    assert transcribed == [Message.user(SPOKEN, GatewayConfig().media.transcribe_instruction)]
    assert options["modalities"] == ("text",)
    assert asked == [Message.user(SPOKEN)]
    assert shown.getvalue().startswith("          transcribed: 1\nlow       2\n")


async def test_function_that_an_answer_calls_returns_and_the_answer_to_that_is_remembered(
    tmp_path: Path,
) -> None:
    call = FunctionCall("1", "set_light", '{"room": "hall"}')
    client, shown = FakeClient(calls=[call]), io.StringIO()
    talk = DemoConversation(cast(AsyncClient, client), ("low",), tmp_path, Display(shown))
    await talk.say(Question("a", functions=(SET_LIGHT,)))
    await talk.say(Question("b"))
    first, told, last = (messages for messages, _ in client.asked)
    assert first == [Message.user("a")]
    assert told == [*first, Message.assistant(calls=[call]), Message.tool(call, DONE)]
    assert last == [Message.user("a"), Message.assistant("2"), Message.user("b")]
    assert (
        f'low       set_light({{"room": "hall"}})\n          returns {DONE}\n' in shown.getvalue()
    )


def test_model_that_hears_or_calls_nothing_is_asked_what_it_takes() -> None:
    asked = [each for question in SCRIPT if (each := question.for_inputs(("text",)))]
    assert len(asked) == len(SCRIPT) - 1
    assert not any(each.recording or each.functions for each in asked)
    assert [each.for_inputs(("audio", "text", "tools")) for each in SCRIPT] == [*SCRIPT]


async def test_every_answer_and_the_whole_conversation_are_saved(tmp_path: Path) -> None:
    talk = conversation(FakeClient(), tmp_path)
    for text in "ab":
        await talk.say(Question(text))
    assert len(talk.save(STAGES)) == 2
    assert files(tmp_path) == {"turn-1.wav", "turn-2.wav", "conversation.wav", "demo.png"}
    assert seconds_of(tmp_path / "turn-1.wav") == seconds_of(tmp_path / "turn-2.wav") == 1.0
    assert seconds_of(tmp_path / "conversation.wav") > 2.0
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


async def test_picture_is_left_out_with_a_reason_when_matplotlib_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "antiphon_tools.demo.picture", raising=False)
    talk = conversation(FakeClient(), tmp_path)
    await talk.say(Question("a"))
    said = talk.save(STAGES)
    assert "pip install matplotlib" in said[-1]
    assert files(tmp_path) == {"turn-1.wav", "conversation.wav"}


async def test_nothing_is_saved_when_nothing_was_spoken(tmp_path: Path) -> None:
    talk = conversation(FakeClient(silent=True), tmp_path)
    await talk.say(Question("a"))
    (said,) = talk.save(STAGES)
    assert said.startswith("No speech was generated")
    assert not files(tmp_path)


def test_functions_are_those_that_the_embedded_model_has_learned() -> None:
    asked = [each for question in SCRIPT for each in question.functions]
    told = [{"type": "function", "function": asdict(each)} for each in asked]
    assert told == [*FUNCTIONS]
