"""What is sent, remembered and saved; the server is a fake that says what it is told to."""

from __future__ import annotations

import io
import sys
import wave
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self, cast

import pytest
from answers import RATE_HZ, pcm16, turn

from antiphon.client.aio import AsyncClient
from antiphon.client.events import AudioDelta, Event, Finished, TextDelta
from antiphon.client.request import Message
from tools.demo.conversation import REMEMBERED_TURNS, DemoConversation
from tools.demo.display import Display
from tools.demo.script import Question

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

    def __init__(self, *, silent: bool = False) -> None:
        self.asked: list[tuple[list[Message], dict[str, Any]]] = []
        self._silent = silent

    def generate(self, messages: Sequence[Message], **options: Any) -> FakeGeneration:
        self.asked.append((list(messages), options))
        reply = turn().answer.reply
        sound = [] if self._silent else [AudioDelta(pcm16(1.0, 9000), 0)]
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
    monkeypatch.delitem(sys.modules, "tools.demo.picture", raising=False)
    talk = conversation(FakeClient(), tmp_path)
    await talk.say(Question("a"))
    said = talk.save(STAGES)
    assert "pip install matplotlib" in said[-1]
    assert files(tmp_path) == {"turn-1.wav", "conversation.wav"}


async def test_nothing_is_saved_when_nothing_was_spoken(tmp_path: Path) -> None:
    talk = conversation(FakeClient(silent=True), tmp_path)
    await talk.say(Question("a"))
    (said,) = talk.save(STAGES)
    assert said.startswith("Nothing was spoken")
    assert not files(tmp_path)
