"""What a client asks of a conversation, whatever its protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from antiphon_gateway.conversations.items import ConversationItem
from antiphon_gateway.conversations.settings import ConversationSettings


@dataclass(frozen=True, slots=True)
class ChangeSettings:
    """These settings hold from now on."""

    settings: ConversationSettings


@dataclass(frozen=True, slots=True)
class AppendAudio:
    """More of what the microphone hears: 16-bit mono samples."""

    pcm16: bytes
    rate_hz: int


@dataclass(frozen=True, slots=True)
class CommitAudio:
    """The audio so far is a user's message."""


@dataclass(frozen=True, slots=True)
class ClearAudio:
    """The audio so far is dropped."""


@dataclass(frozen=True, slots=True)
class CreateItem:
    """Insert an item behind another one (None: at the end). An item without an id gets one."""

    item: ConversationItem
    after: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteItem:
    """Take an item out."""

    item_id: str


@dataclass(frozen=True, slots=True)
class RetrieveItem:
    """Tell an item with its recordings."""

    item_id: str


@dataclass(frozen=True, slots=True)
class TruncateItem:
    """The listener stopped at `end_s` of an answer's audio."""

    item_id: str
    content_index: int
    end_s: float


@dataclass(frozen=True, slots=True)
class CreateResponse:
    """Answer the conversation, or what is `given` instead: items, and ids of items that are there.

    Without settings those of the conversation hold. A response that is not `in_conversation`
    leaves no item in it. `metadata` comes back with the response.
    """

    settings: ConversationSettings | None = None
    in_conversation: bool = True
    given: tuple[ConversationItem | str, ...] | None = None
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class CancelResponse:
    """End that response, or (None) the one that answers the conversation."""

    response_id: str | None = None


Command = (
    ChangeSettings
    | AppendAudio
    | CommitAudio
    | ClearAudio
    | CreateItem
    | DeleteItem
    | RetrieveItem
    | TruncateItem
    | CreateResponse
    | CancelResponse
)
