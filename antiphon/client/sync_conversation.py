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
    """A conversation, which is an iterator of its events. Its methods send commands.

    >>> with client.converse(instructions="Be brief.") as call:
    ...     call.add("What is antiphon?")
    ...     call.respond()
    ...     for event in call:
    ...         match event:
    ...             case antiphon.ResponseAudioDelta(pcm16=pcm16):
    ...                 speaker.write(pcm16)
    ...             case antiphon.ResponseDone():
    ...                 break

    Entering the context opens the conversation. Leaving it cancels everything that is still
    running. Commands may be sent from a different thread than the one that reads the events. A
    command returns as soon as it is queued, and its result arrives as an event. If the server
    rejects a command, it sends `CommandFailed` with the `reference` that the caller passed, and the
    conversation continues. The conversation also continues if a response fails. An error that ends
    the conversation is raised as an `AntiphonError`.
    """

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    @property
    def opened(self) -> ConversationOpened:
        """The server's first event, which contains the model, the voices, the sample rate and the
        settings.
        """
        return self._talk.opened

    @property
    def sample_rate_hz(self) -> int:
        """The sample rate of the answers in Hz, or 0 if they have no audio."""
        return self._talk.opened.sample_rate_hz

    def update(self, *, reference: str = "", **options: Unpack[ConversationOptions]) -> None:
        """Change settings of the conversation. The resulting settings arrive as a `SettingsUpdated`
        event.
        """
        now(self._talk.send([commands.change_settings(options, reference)]))

    def send_audio(self, pcm16: bytes, rate_hz: int = 24_000, *, reference: str = "") -> None:
        """Append audio from the user to the audio buffer.

        `pcm16` contains 16-bit little-endian mono samples. The sample rate must be between 8,000
        and 48,000 Hz.
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

        The new item's ID arrives in an `ItemCreated` event. `after` is the ID of the item to insert
        it after, or "root" to insert it at the beginning. By default, the item is appended.
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
        """Shorten a spoken item to the part that the user has heard, which is `heard_s` seconds
        long.

        The position of the cut in the text is an estimate. The server confirms the change with
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
        """Request a response. Its events are `ResponseStarted`, the deltas, and `ResponseDone`.

        By default, the model responds to the conversation. If `given` is set, the model responds to
        these items instead. Each of them is an `Item` or the ID of an existing item. A response
        that is `out_of_band` adds no item to the conversation. `metadata` is returned with the
        response. The settings in `options` apply to this response only.
        """
        request = commands.create_response(
            given, metadata, options, reference, out_of_band=out_of_band
        )
        now(self._talk.send([request]))

    def cancel(self, response_id: str = "", *, reference: str = "") -> None:
        """Cancel a response. By default, this is the response to the conversation.

        No further deltas arrive for it, only `ResponseDone`.
        """
        now(self._talk.send([commands.cancel_response(response_id, reference)]))

    def interrupt(self, heard_s: float, *, reference: str = "") -> None:
        """Cancel the current answer and keep only its first `heard_s` seconds, which the user has
        heard.

        Call this when the user starts to speak.
        """
        now(self._talk.interrupt(heard_s, reference))

    def finish(self) -> None:
        """Close the client's side of the conversation. The events end once all requested responses
        are complete.
        """
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
