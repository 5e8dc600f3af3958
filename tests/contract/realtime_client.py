"""A realtime client: OpenAI's own connection, whose every event is checked against its types."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, get_args

from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import RealtimeServerEvent
from pydantic import BaseModel

from tests.contract.served_gateway import MODEL, ServedGateway
from tests.contract.spoken_audio import Heard

Told = dict[str, Any]


def _types() -> dict[str, type[BaseModel]]:
    """The class of each server event, by its `type`."""
    union = get_args(RealtimeServerEvent)[0]
    return {get_args(each.model_fields["type"].annotation)[0]: each for each in get_args(union)}


TYPES = _types()


class Realtime:
    """One connection; `events` are all that have come."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.events: list[Told] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self.connection.send({"type": kind, **fields})  # type: ignore[arg-type]

    async def say(self, text: str, **fields: Any) -> None:
        """Add a message of the user, and see it added."""
        part = {"type": "input_text", "text": text}
        item = {"type": "message", "role": "user", "content": [part]}
        await self.send("conversation.item.create", item=item, **fields)
        await self.until("conversation.item.done")

    async def end_turns_itself(self) -> None:
        """Have no turns detected."""
        await self.detect_turns(None)

    async def detect_turns(self, how: Told | None) -> None:
        """Set `turn_detection`, and see it set."""
        audio = {"input": {"turn_detection": how}}
        await self.send("session.update", session={"type": "realtime", "audio": audio})
        await self.until("session.updated")

    async def next(self) -> Told:
        """The next event, which must be one of OpenAI's."""
        event = await self.next_of_any_kind()
        TYPES[event["type"]].model_validate(event, strict=True)
        self.events.append(event)
        return event

    async def next_of_any_kind(self) -> Told:
        """The next event, perhaps one of antiphon's own; it is not noted."""
        event: Told = json.loads(await self.connection.recv_bytes())
        return event

    async def until(self, kind: str) -> Told:
        """The next event of that type; others before it are passed over, errors are not."""
        while (event := await self.next())["type"] != kind:
            assert event["type"] != "error" or kind == "error", event
        return event

    async def until_begun(self) -> Told:
        """The first delta of audio, once text has come, too; each comes from a stage of its own."""
        first: dict[str, Told] = {}
        kinds = ("response.output_audio.delta", "response.output_audio_transcript.delta")
        while not all(kind in first for kind in kinds):
            event = await self.next()
            assert event["type"] != "error", event
            first.setdefault(event["type"], event)
        return first[kinds[0]]


@asynccontextmanager
async def realtime(
    served: ServedGateway, model: str = MODEL, **headers: str
) -> AsyncIterator[Realtime]:
    async with served.openai.realtime.connect(model=model, extra_headers=headers) as connection:
        client = Realtime(connection)
        created = await client.next()
        assert created["type"] == "session.created"
        yield client


async def hear(client: Realtime, heard: Heard, seconds: float = 0.1) -> None:
    for piece in heard.pieces(seconds):
        await client.send("input_audio_buffer.append", audio=piece)
