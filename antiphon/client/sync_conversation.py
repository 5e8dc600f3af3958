"""A conversation in the blocking client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from antiphon.client import conversation_commands as commands
from antiphon.client.calls import now
from antiphon.client.conversation_commands import ConversationOptions
from antiphon.client.conversing import Talk
from antiphon.values.answer import FunctionCall
from antiphon.values.live_conversation import CallResultPart, ConversationOpened, Item, TalkEvent


class ConversationCall(Iterator[TalkEvent]):
    """A conversation. Iterate over it to receive events and call its methods to send commands.

    >>> with client.converse(instructions="Be brief.") as call:
    ...     call.add("What is antiphon?")
    ...     call.respond()
    ...     for event in call:
    ...         match event:
    ...             case antiphon.ResponseAudioDelta(pcm16=pcm16):
    ...                 speaker.write(pcm16)
    ...             case antiphon.ResponseDone():
    ...                 break

    Entering the context opens the conversation, and leaving it cancels everything that is still
    running. One thread can send commands while another one reads events. A command returns as soon
    as it is queued, and its result arrives as an event. If the server rejects a command, it sends
    `CommandFailed` with the `reference` that was passed to the command. Neither a rejected command
    nor a failed response ends the conversation. An error that does end it is raised as an
    `AntiphonError`.
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

    def update(self, *, reference: str = "", **options: Unpack[ConversationOptions]) -> None:
        """Change the conversation's settings. The server replies with `SettingsUpdated`, which
        contains the resulting settings.
        """
        now(self._talk.send([commands.change_settings(options, reference)]))

    def send_audio(self, pcm16: bytes, rate_hz: int = 24_000, *, reference: str = "") -> None:
        """Append user audio to the audio buffer.

        `pcm16` contains 16-bit little-endian mono samples. `rate_hz` must be between 8,000 and
        48,000.
        """
        now(self._talk.send(commands.audio_requests(pcm16, rate_hz, reference)))

    def commit_audio(self, *, reference: str = "") -> None:
        """Turn the buffered audio into a user message. The server confirms this with
        `AudioAccepted` and `ItemCreated`.
        """
        now(self._talk.send([commands.commit_audio(reference)]))

    def clear_audio(self, *, reference: str = "") -> None:
        """Clear the audio buffer. The server confirms this with `AudioDropped`."""
        now(self._talk.send([commands.clear_audio(reference)]))

    def add(self, item: str | Item, *, after: str | None = None, reference: str = "") -> None:
        """Insert a message into the conversation. If `item` is a `str`, it becomes a user message.

        By default, the item is appended to the conversation. Set `after` to an item's ID to insert
        the new item after it, or to "root" to insert it at the beginning. The ID of the new item
        arrives in an `ItemCreated` event.
        """
        now(self._talk.send([commands.create_item(item, after, reference)]))

    def answer_call(self, call: FunctionCall, output: str, *, reference: str = "") -> None:
        """Send the result of a function call. The server confirms it with `ItemCreated`."""
        item = Item("tool", (CallResultPart(call.id, output),))
        now(self._talk.send([commands.create_item(item, None, reference)]))

    def delete(self, item_id: str, *, reference: str = "") -> None:
        """Remove an item from the conversation. The server confirms this with `ItemRemoved`."""
        now(self._talk.send([commands.delete_item(item_id, reference)]))

    def fetch(self, item_id: str, *, reference: str = "") -> None:
        """Request an item, including its recordings. It arrives in an `ItemFetched` event."""
        now(self._talk.send([commands.retrieve_item(item_id, reference)]))

    def truncate(self, item_id: str, heard_s: float, *, reference: str = "") -> None:
        """Shorten a spoken item to its first `heard_s` seconds, which are the part that the user
        has heard.

        The position at which the text is cut is an estimate. The server confirms the change with
        `ItemCut`.
        """
        now(self._talk.send([commands.truncate_item(item_id, heard_s, reference)]))

    def respond(
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
        now(self._talk.send([request]))

    def cancel(self, response_id: str = "", *, reference: str = "") -> None:
        """Cancel a response. By default, this is the response to the conversation.

        After this, the server sends no more deltas for the response, only `ResponseDone`.
        """
        now(self._talk.send([commands.cancel_response(response_id, reference)]))

    def interrupt(self, heard_s: float, *, reference: str = "") -> None:
        """Cancel the current answer and keep only its first `heard_s` seconds, which the user has
        heard.

        Call this when the user starts to speak.
        """
        now(self._talk.interrupt(heard_s, reference))

    def finish(self) -> None:
        """Stop sending commands. The iteration ends once all requested responses are complete."""
        self._talk.finish()

    def __next__(self) -> TalkEvent:
        """Wait for the next event and return it."""
        event = now(self._talk.next_event())
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> Self:
        now(self._talk.open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._talk.cancel()
