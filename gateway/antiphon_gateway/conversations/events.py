"""Events that are used only by endpoints, in addition to those in
`antiphon.values.live_conversation`.
"""

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
    """A response and its settings. Once it has completed, `reports` contains each stage's report by
    role.
    """

    settings: ConversationSettings
    reports: Mapping[str, session_pb2.SegmentReport] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemStarted(ResponseItemStarted):
    """The start of an item in a response. The item is still empty."""

    response: Response
    item: Item


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDone(ResponseItemDone):
    """The end of an item in a response, with the state of the response at that time."""

    response: Response


@dataclass(frozen=True, slots=True)
class ResponseSamples:
    """The next piece of an item's audio, as mono float32 samples from the model.

    Endpoints encode the samples. `ResponseAudioDelta` is the same event with 16-bit samples.
    """

    response_id: str
    item_id: str
    samples: Tensor
    index: int = 0


ConversationEvent = TalkEvent | ConversationSaved | ResponseSamples


def own_response(reply: ConversationReply) -> Response:
    """Return the response of an event that was created by this gateway."""
    assert isinstance(reply, Response)
    return reply
