"""Converts the messages of an OpenAI chat request to a conversation."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.errors import NotImplementedYet
from antiphon.values.conversation import (
    FUNCTION_NAME,
    ConversationMessage,
    Part,
    TextPart,
    ToolCall,
)
from antiphon_gateway.endpoints.http.json_body import invalid
from antiphon_gateway.endpoints.http.options import check_recording_format
from antiphon_gateway.endpoints.openai.chat import schema
from antiphon_gateway.endpoints.openai.chat.schema import ChatMessage
from antiphon_gateway.endpoints.openai.spoken import SpokenAnswers
from antiphon_gateway.media.attachments import Attachments
from antiphon_gateway.media.audio_in import Recording, read_audio_url
from antiphon_gateway.media.data_url import data_or_url
from antiphon_gateway.media.vision_in import IMAGE, VIDEO, read_data_url
from antiphon_gateway.orders.tools import read_arguments

_MESSAGE_FIELDS = ("refusal", "function_call")
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_PART_NAMES: Mapping[type, str] = {
    schema.FilePart: "file",
    schema.RefusalPart: "refusal",
}


def read_messages(
    chat_messages: tuple[ChatMessage, ...], spoken: SpokenAnswers
) -> tuple[tuple[ConversationMessage, ...], Attachments]:
    """Return the messages and their attachments. Message parts refer to attachments by index.

    Raises `InvalidArgument` or `NotImplementedYet` with the field.
    """
    if not chat_messages:
        raise invalid("messages", "is empty")
    attachments = Attachments()
    messages = []
    for index, message in enumerate(chat_messages):
        path = f"messages[{index}]"
        _check_message(message, path)
        role = _ROLES[message.role]
        parts, calls = _parts(message, path, attachments), _calls(message, path)
        if not parts and message.audio is not None:
            parts = (TextPart(_said(message.audio, path, spoken)),)
        if not parts and not calls and role != "tool":
            # This is a turn without content, for example an answer that was interrupted
            # immediately.
            parts = (TextPart(""),)
        answered = message.tool_call_id or ""
        messages.append(
            ConversationMessage(role, parts, calls, answered)  # type: ignore[arg-type]
        )
    return tuple(messages), attachments


def _check_message(message: ChatMessage, path: str) -> None:
    """Raise an error if a message has fields that aren't allowed for its role."""
    if message.role not in _ROLES:
        raise NotImplementedYet(
            f"{path}.role: {message.role!r} is not supported", field=f"{path}.role"
        )
    if message.audio is not None and message.role != "assistant":
        raise invalid(
            f"{path}.audio", f"only allowed in assistant messages, got the role {message.role}"
        )
    if message.images and message.role != "assistant":
        raise invalid(
            f"{path}.images",
            f"only allowed in assistant messages, got the role {message.role}; put images into "
            "the content",
        )
    for name in _MESSAGE_FIELDS:
        if getattr(message, name):
            raise NotImplementedYet(f"{path}.{name}: is not supported", field=f"{path}.{name}")
    if message.tool_calls and message.role != "assistant":
        raise invalid(
            f"{path}.tool_calls", f"only allowed in assistant messages, got the role {message.role}"
        )
    if (message.role == "tool") != bool(message.tool_call_id):
        raise invalid(
            f"{path}.tool_call_id",
            "is required for messages with the role 'tool', and only allowed there",
        )


def _calls(message: ChatMessage, path: str) -> tuple[ToolCall, ...]:
    """Return the calls in an assistant message."""
    calls = []
    for index, call in enumerate(message.tool_calls or ()):
        function, at = call.function, f"{path}.tool_calls[{index}].function"
        if FUNCTION_NAME.fullmatch(function.name) is None:
            raise invalid(f"{at}.name", "must be 1 to 64 letters, digits, _ or -")
        arguments = read_arguments(function.arguments, f"{at}.arguments")
        calls.append(ToolCall(call.id, function.name, arguments))
    return tuple(calls)


def _said(audio: schema.AssistantAudio, path: str, spoken: SpokenAnswers) -> str:
    """Return the transcript of the audio in a message. Either the client has sent it, or it is
    stored under the ID of the audio.
    """
    said = audio.transcript or (spoken.transcript(audio.id) if audio.id else "")
    if not said and audio.transcript is None:
        raise invalid(
            f"{path}.audio",
            "has no transcript, and its ID is unknown or has expired; send the transcript",
        )
    return said


def _parts(message: ChatMessage, path: str, attachments: Attachments) -> tuple[Part, ...]:
    """Return the content as parts. The media they refer to are appended to `attachments`."""
    content = message.content
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    return tuple(
        _part(part, message.role, f"{path}.content[{index}]", attachments)
        for index, part in enumerate(content or ())
    )


def _part(part: schema.Part, role: str, path: str, attachments: Attachments) -> Part:
    match part:
        case schema.ChatTextPart(text):
            return TextPart(text or "")
        case schema.ChatAudioPart(audio):
            _check_user(role, path, "audio")
            check_recording_format(audio.format, f"{path}.input_audio.format")
            field = f"{path}.input_audio.data"
            return attachments.add_recording(Recording(field, data_or_url(audio.data, field)))
        case schema.ChatAudioUrlPart(audio):
            _check_user(role, path, "audio")
            return attachments.add_recording(read_audio_url(audio.url, f"{path}.audio_url.url"))
        case schema.ChatImagePart(image):
            _check_user(role, path, "an image")
            if image.detail == "low":
                raise NotImplementedYet(
                    f"{path}.image_url.detail: images are never scaled down; leave it out",
                    field=f"{path}.image_url.detail",
                )
            return attachments.add_image(read_data_url(image.url, IMAGE, f"{path}.image_url.url"))
        case schema.ChatVideoPart(video):
            _check_user(role, path, "a video")
            return attachments.add_video(read_data_url(video.url, VIDEO, f"{path}.video_url.url"))
        case _:
            name = _PART_NAMES[type(part)]
            raise NotImplementedYet(
                f"{path}: {name} parts are not supported; use text, input_audio, image_url or "
                "video_url",
                field=path,
            )


def _check_user(role: str, path: str, what: str) -> None:
    """Raise an error unless the message is a user message. Messages with other roles can't contain
    media.
    """
    if role != "user":
        raise invalid(path, f"{what} parts are only allowed in user messages, got the role {role}")
