"""The messages of an OpenAI chat request as a conversation."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.conversation import AudioPart, Message, TextPart
from antiphon.errors import InvalidArgument, NotImplementedYet
from gateway import chat_schema
from gateway.audio_in import Recording
from gateway.chat_schema import ChatMessage

_MESSAGE_FIELDS = ("refusal", "tool_calls", "tool_call_id", "function_call")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_PART_NAMES: Mapping[type, str] = {
    chat_schema.ImagePart: "images",
    chat_schema.VideoPart: "video",
    chat_schema.AudioUrlPart: "audio by URL",
    chat_schema.FilePart: "files",
    chat_schema.RefusalPart: "refusals",
}


def read_messages(
    chat_messages: tuple[ChatMessage, ...],
) -> tuple[tuple[Message, ...], tuple[Recording, ...]]:
    """The messages, and the recordings that their parts refer to by index.

    Raises `InvalidArgument` or `NotImplementedYet` with the field.
    """
    if not chat_messages:
        raise invalid("messages", "is empty")
    recordings: list[Recording] = []
    messages = []
    for index, message in enumerate(chat_messages):
        path = f"messages[{index}]"
        _check_message(message, path)
        messages.append(Message(_ROLES[message.role], _parts(message, path, recordings)))  # type: ignore[arg-type]
    return tuple(messages), tuple(recordings)


def _check_message(message: ChatMessage, path: str) -> None:
    """Raise for a message that is more than a role and its content."""
    if message.role not in _ROLES:
        raise NotImplementedYet(
            f"{path}.role: {message.role!r} is not supported yet", field=f"{path}.role"
        )
    if message.audio is not None:
        raise invalid(
            f"{path}.audio", "spoken answers are not kept; send the transcript as content"
        )
    for name in _MESSAGE_FIELDS:
        if getattr(message, name):
            raise NotImplementedYet(f"{path}.{name}: is not supported yet", field=f"{path}.{name}")
    if not message.content:
        raise invalid(f"{path}.content", "is missing or empty")


def _parts(
    message: ChatMessage, path: str, recordings: list[Recording]
) -> tuple[TextPart | AudioPart, ...]:
    """The content as parts; recordings are appended to the list."""
    content = message.content
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(
        _part(part, message.role, f"{path}.content[{index}]", recordings)
        for index, part in enumerate(content or ())
    )


def _part(
    part: chat_schema.Part, role: str, path: str, recordings: list[Recording]
) -> TextPart | AudioPart:
    match part:
        case chat_schema.TextPart(text):
            return TextPart(text)
        case chat_schema.AudioPart(audio):
            if role != "user":
                raise invalid(path, f"audio goes only into user messages, not {role}")
            if audio.format != "wav":
                raise NotImplementedYet(
                    f"{path}.input_audio.format: {audio.format!r} is not supported yet, only 'wav'",
                    field=f"{path}.input_audio.format",
                )
            recordings.append(Recording(f"{path}.input_audio.data", audio.data))
            return AudioPart(len(recordings) - 1)
        case _:
            name = _PART_NAMES[type(part)]
            raise NotImplementedYet(f"{path}: {name} are not supported yet", field=path)


def invalid(field: str, why: str) -> InvalidArgument:
    """The error for a wrong field of a request."""
    return InvalidArgument(f"{field}: {why}", field=field)
