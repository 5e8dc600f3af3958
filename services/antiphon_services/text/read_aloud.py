"""The text of a request that is spoken verbatim."""

from __future__ import annotations

from antiphon.errors import InvalidArgument
from antiphon.values.conversation import Conversation, TextPart

MESSAGES = "messages"


def text_to_read(conversation: Conversation) -> str:
    """Return the text of a conversation that consists of one message. Raises `InvalidArgument` if
    there is none.
    """
    messages = conversation.messages
    if len(messages) != 1 or messages[0].role != "user":
        raise InvalidArgument(
            f"{MESSAGES}: one message of the user is read aloud; {len(messages)} came, of "
            f"{', '.join(dict.fromkeys(each.role for each in messages)) or 'nobody'}",
            field=MESSAGES,
        )
    texts = [part.text for part in messages[0].parts if isinstance(part, TextPart)]
    if len(texts) != len(messages[0].parts):
        raise InvalidArgument(f"{MESSAGES}: only text is read aloud", field=MESSAGES)
    return "".join(texts)
