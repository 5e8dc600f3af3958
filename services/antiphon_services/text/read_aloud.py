"""The text in a request to speak that text verbatim."""

from __future__ import annotations

from antiphon.errors import InvalidArgument
from antiphon.values.conversation import Conversation, TextPart

MESSAGES = "messages"

JSON_ESCAPE, JSON_AROUND = 6, 256
"""The maximum number of JSON bytes for one byte of text, and the maximum number for the fields
around the text.
"""


def most_json_bytes(text_bytes: int) -> int:
    """Return the maximum size, in bytes, of a message whose text has up to `text_bytes` bytes."""
    return JSON_ESCAPE * text_bytes + JSON_AROUND


def too_long(what: str, field: str) -> InvalidArgument:
    """Return the error for a text in `field` that is too long."""
    return InvalidArgument(f"{field}: {what}; shorten it", field=field)


def text_to_read(conversation: Conversation) -> str:
    """Return the text of a conversation that consists of a single message. Raises `InvalidArgument`
    if there is no text.
    """
    messages = conversation.messages
    if len(messages) != 1 or messages[0].role != "user":
        raise InvalidArgument(
            f"{MESSAGES}: must be a single user message to be read aloud, got {len(messages)} "
            "messages with the roles: "
            f"{', '.join(dict.fromkeys(each.role for each in messages)) or 'nobody'}",
            field=MESSAGES,
        )
    texts = [part.text for part in messages[0].parts if isinstance(part, TextPart)]
    if len(texts) != len(messages[0].parts):
        raise InvalidArgument(f"{MESSAGES}: only text can be read aloud", field=MESSAGES)
    return "".join(texts)
