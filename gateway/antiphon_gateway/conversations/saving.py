"""Sends tokens that allow the client to continue the conversation on another gateway.

Tokens are sent only between commands. A token includes the effects of all earlier commands but not
of later ones. This tells the client which commands to send again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import structs

from antiphon.values.live_conversation import (
    AudioAccepted,
    AudioDropped,
    CommandFailed,
    ConversationOpened,
    ConversationSaved,
    Item,
    ItemCreated,
    ItemCut,
    ItemRemoved,
    ResponseDone,
    ResponseStarted,
    SettingsUpdated,
    TranscriptDone,
)
from antiphon_gateway.conversations.client import ConversationClient
from antiphon_gateway.conversations.events import (
    ConversationEvent,
    ItemDone,
    ItemStarted,
    own_response,
)
from antiphon_gateway.conversations.saved import PendingResponse, save
from antiphon_gateway.conversations.settings import ConversationSettings

SealToken = Callable[[bytes], bytes]
"""Creates a token from a conversation that has been saved."""


class Saving:
    """A wrapper around the client that sees all events. `state` returns the conversation's settings
    and items.
    """

    def __init__(
        self,
        client: ConversationClient,
        state: Callable[[], tuple[ConversationSettings, Iterable[Item]]],
        seal: SealToken,
        most_bytes: int,
    ) -> None:
        self._client = client
        self._state = state
        self._seal = seal
        self._most_bytes = most_bytes
        self._pending: dict[str, PendingResponse] = {}
        self._stale = False
        self._busy = 0
        self._begun = self._done = self._audio_done = 0

    async def send(self, events: Sequence[ConversationEvent]) -> None:
        """Send events to the client. If a token is due, it is sent after the events."""
        for event in events:
            self._note(event)
        await self._client.send(events)
        if self.due:
            await self._client.send(self.saved())

    @contextmanager
    def command(self, *, counted: bool) -> Iterator[None]:
        """Return a context manager for the execution of a command. `counted` is true if the client
        sent the command.
        """
        self._busy += 1
        self._begun += counted
        try:
            yield
        finally:
            self._busy -= 1
            self._done += counted

    def change(self) -> None:
        """Record a change that wasn't caused by the client."""
        self._stale = True

    @property
    def due(self) -> bool:
        """Whether a token is due."""
        return self._stale and not self._busy

    def saved(self) -> Sequence[ConversationEvent]:
        """Return the token for the current state of the conversation."""
        self._stale = False
        settings, items = self._state()
        content = save(settings, items, self._pending.values(), self._most_bytes)
        token = b"" if content is None else self._seal(content)
        return [ConversationSaved(token, self._done, self._audio_done)]

    def _note(self, event: ConversationEvent) -> None:
        match event:
            case ResponseStarted(response):
                metadata = None if response.metadata is None else dict(response.metadata)
                self._pending[response.id] = PendingResponse(
                    response.id,
                    not response.out_of_band,
                    metadata,
                    own_response(response).settings.spoken,
                )
            case ItemStarted(response_id, item_id, index):
                self._change_open(response_id, lambda items: items | {item_id: index})
            case ItemDone(response_id, item):
                self._change_open(response_id, lambda items: _without(items, item.id))
            case ResponseDone(response):
                self._pending.pop(response.id, None)
            case AudioAccepted() | AudioDropped():
                # This includes the command that is currently being executed.
                self._audio_done = self._begun
            case (
                ConversationOpened()
                | SettingsUpdated()
                | CommandFailed()
                | ItemCreated()
                | ItemRemoved()
                | ItemCut()
                | TranscriptDone()
            ):
                pass
            case _:
                return
        self._stale = True

    def _change_open(
        self, response_id: str, changed: Callable[[dict[str, int]], dict[str, int]]
    ) -> None:
        if (pending := self._pending.get(response_id)) is not None:
            items = changed(pending.open_items)
            self._pending[response_id] = structs.replace(pending, open_items=items)


def _without(items: dict[str, int], item_id: str) -> dict[str, int]:
    return {each: index for each, index in items.items() if each != item_id}
