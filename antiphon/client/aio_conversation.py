"""A conversation of the asyncio client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from antiphon.client import conversation_commands as commands
from antiphon.client.conversation_commands import ConversationOptions
from antiphon.client.conversing import Talk
from antiphon.values.answer import FunctionCall
from antiphon.values.live_conversation import CallResultPart, ConversationOpened, Item, TalkEvent


class AsyncConversationCall(AsyncIterator[TalkEvent]):
    """A conversation: several turns, answers that may be interrupted; an iterator of its events.

    >>> async with client.converse(instructions="Be brief.") as call:
    ...     await call.add("What is antiphon?")
    ...     await call.respond()
    ...     async for event in call:
    ...         match event:
    ...             case antiphon.ResponseAudioDelta(pcm16=pcm16):
    ...                 await speaker.write(pcm16)
    ...             case antiphon.ResponseDone():
    ...                 break

    The same as `ConversationCall`; commands may be sent from another task than the one that
    reads. Cancelling a task that sends leaves the conversation as it is, cancelling the one that
    reads ends it.
    """

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    @property
    def opened(self) -> ConversationOpened:
        """What the server told first: model, voices, the audio's rate, and settings."""
        return self._talk.opened

    @property
    def sample_rate_hz(self) -> int:
        """Of the audio of answers; 0 without audio."""
        return self._talk.opened.sample_rate_hz

    async def update(self, *, reference: str = "", **options: Unpack[ConversationOptions]) -> None:
        """Change settings; `SettingsUpdated` tells what holds then."""
        await self._talk.send([commands.change_settings(options, reference)])

    async def send_audio(self, pcm16: bytes, rate_hz: int = 24_000, *, reference: str = "") -> None:
        """More of what the user says: 16-bit little-endian mono samples, 8000 to 48000 a second."""
        await self._talk.send(commands.audio_requests(pcm16, rate_hz, reference))

    async def commit_audio(self, *, reference: str = "") -> None:
        """The audio so far is the user's message: `AudioAccepted`, `ItemCreated`."""
        await self._talk.send([commands.commit_audio(reference)])

    async def clear_audio(self, *, reference: str = "") -> None:
        """Drop the audio so far: `AudioDropped`."""
        await self._talk.send([commands.clear_audio(reference)])

    async def add(self, item: str | Item, *, after: str | None = None, reference: str = "") -> None:
        """Insert a message; a `str` is the user's. `after`: an item's id, or "root" for the first
        place; None is the last. `ItemCreated` tells its id."""
        await self._talk.send([commands.create_item(item, after, reference)])

    async def answer_call(self, call: FunctionCall, output: str, *, reference: str = "") -> None:
        """Say what came of a call of a function: `ItemCreated`."""
        item = Item("tool", (CallResultPart(call.id, output),))
        await self._talk.send([commands.create_item(item, None, reference)])

    async def delete(self, item_id: str, *, reference: str = "") -> None:
        """Take an item out: `ItemRemoved`."""
        await self._talk.send([commands.delete_item(item_id, reference)])

    async def fetch(self, item_id: str, *, reference: str = "") -> None:
        """Ask for an item with its recordings: `ItemFetched`."""
        await self._talk.send([commands.retrieve_item(item_id, reference)])

    async def truncate(self, item_id: str, heard_s: float, *, reference: str = "") -> None:
        """Keep what was heard of a spoken item, by an estimate: `ItemCut`."""
        await self._talk.send([commands.truncate_item(item_id, heard_s, reference)])

    async def respond(
        self,
        given: Sequence[str | Item] = (),
        *,
        out_of_band: bool = False,
        metadata: Mapping[str, str] | None = None,
        reference: str = "",
        **options: Unpack[ConversationOptions],
    ) -> None:
        """Ask for an answer: `ResponseStarted`, its deltas, `ResponseDone`.

        To the conversation, or to what is `given` instead: items, and ids of items. One that is
        `out_of_band` leaves no item in the conversation. `metadata` comes back with the
        response. The settings are for this response alone.
        """
        request = commands.create_response(
            given, metadata, options, reference, out_of_band=out_of_band
        )
        await self._talk.send([request])

    async def cancel(self, response_id: str = "", *, reference: str = "") -> None:
        """End that response, or the one that answers: no delta follows, `ResponseDone` does."""
        await self._talk.send([commands.cancel_response(response_id, reference)])

    async def interrupt(self, heard_s: float, *, reference: str = "") -> None:
        """The user has begun to speak after hearing `heard_s` seconds of the last answer: end it if
        it is being made, and keep of it what was heard."""
        await self._talk.interrupt(heard_s, reference)

    def finish(self) -> None:
        """Nothing more will be said; the events end when all that was asked for has."""
        self._talk.finish()

    async def __anext__(self) -> TalkEvent:
        """The next event; waits for it."""
        event = await self._talk.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        await self._talk.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._talk.cancel()
