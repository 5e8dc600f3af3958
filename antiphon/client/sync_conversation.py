"""A conversation of the blocking client."""

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
    """A conversation: several turns, answers that may be interrupted; an iterator of its events.

    >>> with client.converse(instructions="Be brief.") as call:
    ...     call.add("What is antiphon?")
    ...     call.respond()
    ...     for event in call:
    ...         match event:
    ...             case antiphon.ResponseAudioDelta(pcm16=pcm16):
    ...                 speaker.write(pcm16)
    ...             case antiphon.ResponseDone():
    ...                 break

    Entering the context opens the conversation, and leaving it ends what still runs. Commands
    may be sent from another thread than the one that reads. They return when they are on their
    way; what comes of them are events. One that is not carried out is told as `CommandFailed`,
    with the `reference` that the caller gave it, and the conversation goes on; so it does when a
    response fails. Whatever ends the conversation itself is raised as an `AntiphonError`.
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

    def update(self, *, reference: str = "", **options: Unpack[ConversationOptions]) -> None:
        """Change settings; `SettingsUpdated` tells what holds then."""
        now(self._talk.send([commands.change_settings(options, reference)]))

    def send_audio(self, pcm16: bytes, rate_hz: int = 24_000, *, reference: str = "") -> None:
        """More of what the user says: 16-bit little-endian mono samples, 8000 to 48000 a second."""
        now(self._talk.send(commands.audio_requests(pcm16, rate_hz, reference)))

    def commit_audio(self, *, reference: str = "") -> None:
        """The audio so far is the user's message: `AudioAccepted`, `ItemCreated`."""
        now(self._talk.send([commands.commit_audio(reference)]))

    def clear_audio(self, *, reference: str = "") -> None:
        """Drop the audio so far: `AudioDropped`."""
        now(self._talk.send([commands.clear_audio(reference)]))

    def add(self, item: str | Item, *, after: str | None = None, reference: str = "") -> None:
        """Insert a message; a `str` is the user's. `after`: an item's id, or "root" for the first
        place; None is the last. `ItemCreated` tells its id."""
        now(self._talk.send([commands.create_item(item, after, reference)]))

    def answer_call(self, call: FunctionCall, output: str, *, reference: str = "") -> None:
        """Say what came of a call of a function: `ItemCreated`."""
        item = Item("tool", (CallResultPart(call.id, output),))
        now(self._talk.send([commands.create_item(item, None, reference)]))

    def delete(self, item_id: str, *, reference: str = "") -> None:
        """Take an item out: `ItemRemoved`."""
        now(self._talk.send([commands.delete_item(item_id, reference)]))

    def fetch(self, item_id: str, *, reference: str = "") -> None:
        """Ask for an item with its recordings: `ItemFetched`."""
        now(self._talk.send([commands.retrieve_item(item_id, reference)]))

    def truncate(self, item_id: str, heard_s: float, *, reference: str = "") -> None:
        """Keep what was heard of a spoken item, by an estimate: `ItemCut`."""
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
        """Ask for an answer: `ResponseStarted`, its deltas, `ResponseDone`.

        To the conversation, or to what is `given` instead: items, and ids of items. One that is
        `out_of_band` leaves no item in the conversation. `metadata` comes back with the
        response. The settings are for this response alone.
        """
        request = commands.create_response(
            given, metadata, options, reference, out_of_band=out_of_band
        )
        now(self._talk.send([request]))

    def cancel(self, response_id: str = "", *, reference: str = "") -> None:
        """End that response, or the one that answers: no delta follows, `ResponseDone` does."""
        now(self._talk.send([commands.cancel_response(response_id, reference)]))

    def interrupt(self, heard_s: float, *, reference: str = "") -> None:
        """The user has begun to speak after hearing `heard_s` seconds of the last answer: end it if
        it is being made, and keep of it what was heard."""
        now(self._talk.interrupt(heard_s, reference))

    def finish(self) -> None:
        """Nothing more will be said; the events end when all that was asked for has."""
        self._talk.finish()

    def __next__(self) -> TalkEvent:
        """The next event; waits for it."""
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
