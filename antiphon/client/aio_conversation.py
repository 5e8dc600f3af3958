"""A conversation in the asyncio client."""

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
    """A conversation. Iterate over it to receive events and call its methods to send commands.

    >>> async with client.converse(instructions="Be brief.") as call:
    ...     await call.add("What is antiphon?")
    ...     await call.respond()
    ...     async for event in call:
    ...         match event:
    ...             case antiphon.ResponseAudioDelta(pcm16=pcm16):
    ...                 await speaker.write(pcm16)
    ...             case antiphon.ResponseDone():
    ...                 break

    It works like `ConversationCall`. One task can send commands while another one reads events.
    Cancelling a task while it sends a command does not affect the conversation, but cancelling the
    task that reads events ends it.
    """

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    @property
    def opened(self) -> ConversationOpened:
        """The first event from the server. It contains the model, the voices, the sample rate and
        the settings.
        """
        return self._talk.opened

    @property
    def sample_rate_hz(self) -> int:
        """The sample rate of the answers in Hz, or 0 if the answers contain no audio."""
        return self._talk.opened.sample_rate_hz

    async def update(self, *, reference: str = "", **options: Unpack[ConversationOptions]) -> None:
        """Change the conversation's settings. The server replies with `SettingsUpdated`, which
        contains the resulting settings.
        """
        await self._talk.send([commands.change_settings(options, reference)])

    async def send_audio(self, pcm16: bytes, rate_hz: int = 24_000, *, reference: str = "") -> None:
        """Append user audio to the audio buffer.

        `pcm16` contains 16-bit little-endian mono samples. `rate_hz` must be between 8,000 and
        48,000.
        """
        await self._talk.send(commands.audio_requests(pcm16, rate_hz, reference))

    async def commit_audio(self, *, reference: str = "") -> None:
        """Turn the buffered audio into a user message. The server confirms this with
        `AudioAccepted` and `ItemCreated`.
        """
        await self._talk.send([commands.commit_audio(reference)])

    async def clear_audio(self, *, reference: str = "") -> None:
        """Clear the audio buffer. The server confirms this with `AudioDropped`."""
        await self._talk.send([commands.clear_audio(reference)])

    async def add(self, item: str | Item, *, after: str | None = None, reference: str = "") -> None:
        """Insert a message into the conversation. If `item` is a `str`, it becomes a user message.

        By default, the item is appended to the conversation. Set `after` to an item's ID to insert
        the new item after it, or to "root" to insert it at the beginning. The ID of the new item
        arrives in an `ItemCreated` event.
        """
        await self._talk.send([commands.create_item(item, after, reference)])

    async def answer_call(self, call: FunctionCall, output: str, *, reference: str = "") -> None:
        """Send the result of a function call. The server confirms it with `ItemCreated`."""
        item = Item("tool", (CallResultPart(call.id, output),))
        await self._talk.send([commands.create_item(item, None, reference)])

    async def delete(self, item_id: str, *, reference: str = "") -> None:
        """Remove an item from the conversation. The server confirms this with `ItemRemoved`."""
        await self._talk.send([commands.delete_item(item_id, reference)])

    async def fetch(self, item_id: str, *, reference: str = "") -> None:
        """Request an item, including its recordings. It arrives in an `ItemFetched` event."""
        await self._talk.send([commands.retrieve_item(item_id, reference)])

    async def truncate(self, item_id: str, heard_s: float, *, reference: str = "") -> None:
        """Shorten a spoken item to its first `heard_s` seconds, which are the part that the user
        has heard.

        The position at which the text is cut is an estimate. The server confirms the change with
        `ItemCut`.
        """
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
        """Request a response. The server sends `ResponseStarted`, the deltas, and finally
        `ResponseDone`.

        By default, the model responds to the conversation. To have it respond to something else,
        pass a list of items, or the IDs of existing items, as `given`. If `out_of_band` is true,
        the response is not added to the conversation. `metadata` is returned with the response. The
        settings in `options` apply to this response only.
        """
        request = commands.create_response(
            given, metadata, options, reference, out_of_band=out_of_band
        )
        await self._talk.send([request])

    async def cancel(self, response_id: str = "", *, reference: str = "") -> None:
        """Cancel a response. By default, this is the response to the conversation.

        After this, the server sends no more deltas for the response, only `ResponseDone`.
        """
        await self._talk.send([commands.cancel_response(response_id, reference)])

    async def interrupt(self, heard_s: float, *, reference: str = "") -> None:
        """Cancel the current answer and keep only its first `heard_s` seconds, which the user has
        heard.

        Call this when the user starts to speak.
        """
        await self._talk.interrupt(heard_s, reference)

    def finish(self) -> None:
        """Stop sending commands. The iteration ends once all requested responses are complete."""
        self._talk.finish()

    async def __anext__(self) -> TalkEvent:
        """Wait for the next event and return it."""
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
