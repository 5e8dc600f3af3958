"""The order of events in each case of a conversation, as files that can be read.

`>` is what the client sends, `<` what it gets; it waits at each `...`. Deltas that follow each
other are one line: how text and audio mix is the stages' affair. To see what a change does to the
order, write the files anew with `--write-orders` and look at the difference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.values.segment import FinishReason
from tests.contract.fake_stages import CODE2WAV, ROLES, THINKER, USUAL, Session
from tests.contract.realtime_client import Realtime, Told, realtime
from tests.contract.served_gateway import ServedGateway
from tests.contract.spoken_audio import sentence, spoken

pytestmark = pytest.mark.asyncio(loop_scope="session")

FOLDER = Path(__file__).parent / "realtime_events"
SENTENCE = spoken([sentence("slow", 0.8)], before_s=0.5, after_s=0.8, snr_db=30)
SHOWN = ("item_id", "previous_item_id", "response_id")


class Transcript:
    """A connection whose events are written down, with short names for ids."""

    def __init__(self, client: Realtime) -> None:
        self.client = client
        self.lines: list[str] = []
        self._names: dict[str, str] = {}
        self._seen = len(client.events)

    async def send(self, kind: str, **fields: Any) -> None:
        await self.client.send(kind, **fields)
        self.lines.append(f"> {kind}{self._ids(fields)}")

    async def write(self, text: str) -> None:
        """Add a message of the user."""
        part = {"type": "input_text", "text": text}
        item = {"type": "message", "role": "user", "content": [part]}
        await self.send("conversation.item.create", item=item)
        await self.until("conversation.item.done")

    async def say(self, begin: float = 0.0, end: float = 1.0) -> None:
        """Send a part of the sentence in pieces."""
        pieces = [*SENTENCE.pieces(0.05)]
        for piece in pieces[round(begin * len(pieces)) : round(end * len(pieces))]:
            await self.client.send("input_audio_buffer.append", audio=piece)
        self.lines.append("> input_audio_buffer.append (in pieces)")

    async def until(self, kind: str) -> Told:
        """Wait for an event and write down all that came."""
        event = await self.client.until(kind)
        for each in self.client.events[self._seen :]:
            self._note(each)
        self._seen = len(self.client.events)
        self.lines.append("...")
        return event

    def text(self) -> str:
        return "\n".join(self.lines[:-1]) + "\n"

    def _note(self, event: Told) -> None:
        kind = event["type"]
        if kind.endswith(".delta"):
            line = f"< deltas{self._ids(event)}"
            if line not in [each for each in self.lines if each.startswith("<")][-1:]:
                self.lines.append(line)
            return
        shown = dict(event)
        item, response = event.get("item"), event.get("response")
        if item is not None:
            shown["item_id"] = item["id"]
        words = self._ids(shown)
        if response is not None:
            words += f" {self._named(response['id'])} {response['status']}"
            words += f" {(response['status_details'] or {}).get('reason') or ''}".rstrip()
        if item is not None:
            words += f" {item.get('role', item['type'])} {item['status']}"
        if kind == "error":
            words += f" {event['error']['code']}"
        self.lines.append(f"< {kind}{words}")

    def _ids(self, fields: Told) -> str:
        words = ""
        for name in SHOWN:
            if fields.get(name):
                words += f" {'after ' if name.startswith('previous') else ''}"
                words += self._named(fields[name])
        return words

    def _named(self, value: str) -> str:
        kind = value.partition("_")[0]
        same = [name for name in self._names.values() if name.startswith(kind)]
        return self._names.setdefault(value, f"{kind}_{len(same) + 1}")


async def manual_turn(told: Transcript) -> None:
    audio = {"input": {"turn_detection": None}}
    await told.send("session.update", session={"type": "realtime", "audio": audio})
    await told.until("session.updated")
    await told.send("input_audio_buffer.append", audio=next(SENTENCE.pieces(1.0)))
    await told.send("input_audio_buffer.commit")
    await told.until("conversation.item.done")
    await told.send("response.create")
    await told.until("response.done")


async def detected_turn(told: Transcript) -> None:
    await told.say()
    await told.until("response.done")


async def barge_in(told: Transcript) -> None:
    await told.write("Tell me a story")
    await told.send("response.create")
    delta = await told.until("response.output_audio.delta")
    await told.say(0.0, 0.6)
    await told.until("response.done")
    heard = {"item_id": delta["item_id"], "content_index": 0, "audio_end_ms": 400}
    await told.send("conversation.item.truncate", **heard)
    await told.until("conversation.item.truncated")
    await told.say(0.6, 1.0)
    await told.until("response.done")


async def cancelled_response(told: Transcript) -> None:
    await told.write("Tell me a story")
    await told.send("response.create")
    await told.until("response.output_audio.delta")
    await told.send("response.cancel")
    await told.until("response.done")


async def cancel_with_nothing_running(told: Transcript) -> None:
    await told.send("response.cancel")
    await told.until("error")
    await told.write("Hi")
    await told.send("response.create")
    await told.until("response.done")


async def out_of_band_response(told: Transcript) -> None:
    await told.write("Hi")
    await told.send("response.create", response={"conversation": "none", "metadata": {"a": "b"}})
    await told.until("response.done")


async def speak_and_be_stopped(session: Session) -> None:
    """Say a little, be cancelled, and answer the next as usual."""
    await session.opened()
    if session.role == THINKER:
        await session.text("Once upon")
    if session.role == CODE2WAV:
        await session.audio(10, 0)
    assert await session.cancelled_segment() == 0
    await session.report(FinishReason.CANCELLED, output_positions=3)
    await session.next_segment()
    await USUAL[session.role](session)


STOPPED = (barge_in, cancelled_response)
CASES = (
    manual_turn,
    detected_turn,
    barge_in,
    cancelled_response,
    cancel_with_nothing_running,
    out_of_band_response,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_events_come_in_the_order_of_the_file(
    served: ServedGateway,
    case: Callable[[Transcript], Awaitable[None]],
    request: pytest.FixtureRequest,
) -> None:
    for role in ROLES:
        served.fakes[role].script = speak_and_be_stopped if case in STOPPED else USUAL[role]
    async with realtime(served) as client:
        told = Transcript(client)
        await case(told)
    path = FOLDER / f"{case.__name__}.txt"
    if request.config.getoption("--write-orders"):
        path.write_text(told.text())
    assert told.text() == path.read_text()
