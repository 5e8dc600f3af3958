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
    """A conversation: an iterator of its events, with commands for turns and interruptions.

    >>> with client.converse(instructions="Be brief.") as call:
    ...     call.add("What is antiphon?")
    ...     call.respond()
    ...     for event in call:
    ...         match event:
    ...             case antiphon.ResponseAudioDelta(pcm16=pcm16):
    ...                 speaker.write(pcm16)
    ...             case antiphon.ResponseDone():
    ...                 break

    Entering the context opens the conversation; leaving it cancels what is running. Commands may be
    sent from a different thread than the reading one. A command returns when it is queued, and its
    result is an event. A rejected command results in `CommandFailed` with the caller's `reference`,
    and the conversation continues. It also continues when a response fails. An error that ends the
    conversation is raised as an `AntiphonError`.
    """

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    @property
    def opened(self) -> ConversationOpened:
        """The server's first event: model, voices, sample rate and settings."""
        return self._talk.opened

    @property
    def sample_rate_hz(self) -> int:
        """Sample rate of the answers' audio. 0 without audio."""
        return self._talk.opened.sample_rate_hz

    def update(self, *, reference: str = "", **options: Unpack[ConversationOptions]) -> None:
        """Change settings; `SettingsUpdated` has the result."""
        now(self._talk.send([commands.change_settings(options, reference)]))

    def send_audio(self, pcm16: bytes, rate_hz: int = 24_000, *, reference: str = "") -> None:
        """Append user audio: 16-bit little-endian mono samples, 8000 to 48000 per second."""
        now(self._talk.send(commands.audio_requests(pcm16, rate_hz, reference)))

    def commit_audio(self, *, reference: str = "") -> None:
        """Make the buffered audio a user message: `AudioAccepted`, `ItemCreated`."""
        now(self._talk.send([commands.commit_audio(reference)]))

    def clear_audio(self, *, reference: str = "") -> None:
        """Clear the audio buffer: `AudioDropped`."""
        now(self._talk.send([commands.clear_audio(reference)]))

    def add(self, item: str | Item, *, after: str | None = None, reference: str = "") -> None:
        """Insert a message; a `str` is a user message. `ItemCreated` has its id.

        `after` is an item's id, or "root" to insert first. None appends.
        """
        now(self._talk.send([commands.create_item(item, after, reference)]))

    def answer_call(self, call: FunctionCall, output: str, *, reference: str = "") -> None:
        """Return the result of a function call: `ItemCreated`."""
        item = Item("tool", (CallResultPart(call.id, output),))
        now(self._talk.send([commands.create_item(item, None, reference)]))

    def delete(self, item_id: str, *, reference: str = "") -> None:
        """Remove an item: `ItemRemoved`."""
        now(self._talk.send([commands.delete_item(item_id, reference)]))

    def fetch(self, item_id: str, *, reference: str = "") -> None:
        """Request an item with its recordings: `ItemFetched`."""
        now(self._talk.send([commands.retrieve_item(item_id, reference)]))

    def truncate(self, item_id: str, heard_s: float, *, reference: str = "") -> None:
        """Truncate a spoken item to what the user heard, by estimate: `ItemCut`."""
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
        """Request an answer: `ResponseStarted`, its deltas, `ResponseDone`.

        It answers the conversation, or `given` instead: items, and ids of items. A response that is
        `out_of_band` adds no item to the conversation. `metadata` is returned with the response.
        Settings apply to this response only.
        """
        request = commands.create_response(
            given, metadata, options, reference, out_of_band=out_of_band
        )
        now(self._talk.send([request]))

    def cancel(self, response_id: str = "", *, reference: str = "") -> None:
        """Cancel a response, by default the one answering the conversation.

        No delta follows, only `ResponseDone`.
        """
        now(self._talk.send([commands.cancel_response(response_id, reference)]))

    def interrupt(self, heard_s: float, *, reference: str = "") -> None:
        """Cancel the current answer and keep the `heard_s` seconds of it that the user heard.

        Call it when the user starts to speak.
        """
        now(self._talk.interrupt(heard_s, reference))

    def finish(self) -> None:
        """End the client's side. Events end when all requested responses are complete."""
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
