"""Resumes a conversation on a new connection. The client asks for this with its first event, which
isn't part of OpenAI's API.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pybase64

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon_gateway.conversations.conversations import Conversations
from antiphon_gateway.conversations.saved import SavedConversation, with_delivered
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.endpoints.http.json_body import field_error
from antiphon_gateway.threads import SizedThreads

RESUME = "antiphon.conversation.resume"
MOST_DELIVERED = 64
_THREADS = SizedThreads("resuming")


class HeardItem(msgspec.Struct, frozen=True):
    """How much of an item a client had received while the answer was in progress."""

    item_id: str
    text: str = ""
    audio_ms: Annotated[float, msgspec.Meta(ge=0, le=1 << 31)] = 0.0


class ConversationResume(msgspec.Struct, frozen=True):
    """The `antiphon.conversation.resume` event. It contains the latest token and describes what the
    client has received since then.
    """

    type: Literal["antiphon.conversation.resume"]
    token: str
    delivered: Annotated[tuple[HeardItem, ...], msgspec.Meta(max_length=MOST_DELIVERED)] = ()


def flag(name: str, value: str | None) -> bool:
    """Parse a boolean query parameter. Raises `InvalidArgument` if it is neither true nor false."""
    if value not in (None, "true", "false"):
        raise InvalidArgument(f"{name}: must be true or false", field=name)
    return value == "true"


async def resumed_of(
    data: str, conversations: Conversations, owner: str, first: ConversationSettings
) -> SavedConversation:
    """Return the conversation that a client's first event asks to resume, up to the point that the
    client has received.

    Raises `InvalidArgument` if the event has a different type, or if the token is forged, too large
    or for a different API key. Raises `FailedPrecondition` if the token has expired or is for a
    different model.
    """
    asked, token = await _THREADS.run(len(data), _read, data)
    try:
        saved = conversations.resume(token, owner, first)
    except (InvalidArgument, FailedPrecondition) as error:
        raise type(error)(error.message, field="token") from None
    heard = {each.item_id: (each.text, each.audio_ms / 1000) for each in asked.delivered}
    return with_delivered(saved, heard)


def _read(data: str) -> tuple[ConversationResume, bytes]:
    try:
        asked = msgspec.json.decode(data, type=ConversationResume)
    except msgspec.ValidationError as error:
        wrong = field_error(error, ConversationResume)
        raise InvalidArgument(
            f"the first event must be {RESUME}: {wrong.message}", field=wrong.field or "type"
        ) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgument(f"the event is not valid JSON: {error}") from None
    try:
        return asked, pybase64.b64decode(asked.token, validate=True)
    except ValueError:
        raise InvalidArgument("token: is not valid base64", field="token") from None
