"""Events for the endpoints alone, beyond those of `antiphon.values.live_conversation`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from antiphon.v1 import session_pb2
from antiphon.values.chunk import Tensor
from antiphon.values.live_conversation import (
    ConversationReply,
    ConversationSaved,
    Item,
    ResponseItemDone,
    ResponseItemStarted,
    TalkEvent,
)
from antiphon_gateway.conversations.settings import ConversationSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Response(ConversationReply):
    """A response and its settings. `reports` has one entry per stage, by role, when it is over."""

    settings: ConversationSettings
    reports: Mapping[str, session_pb2.SegmentReport] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemStarted(ResponseItemStarted):
    """The response's item as it begins, empty."""

    response: Response
    item: Item


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDone(ResponseItemDone):
    """The response as it is at the item's end."""

    response: Response


@dataclass(frozen=True, slots=True)
class ResponseSamples:
    """More audio of an item as the model makes it: mono float32 samples. Endpoints encode it;
    `ResponseAudioDelta` is its form in 16 bits."""

    response_id: str
    item_id: str
    samples: Tensor
    index: int = 0


ConversationEvent = TalkEvent | ConversationSaved | ResponseSamples


def own_response(reply: ConversationReply) -> Response:
    """The response of an event that this gateway made."""
    assert isinstance(reply, Response)
    return reply
