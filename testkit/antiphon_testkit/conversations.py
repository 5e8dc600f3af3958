"""A short notation for conversations, and their conversion to the format of chat templates."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from antiphon.runtime.engine import InputChunk
from antiphon.values.conversation import (
    AudioPart,
    Conversation,
    ConversationMessage,
    ImagePart,
    Part,
    TextPart,
    ToolCall,
    VideoPart,
    to_tensors,
)
from antiphon.values.segment import FinishReason
from antiphon.wire.tool_calls import CallPiece

Pixels = npt.NDArray[np.uint8]


def conversation(
    *messages: tuple[str, str | npt.NDArray[np.float32] | list[Any]],
) -> Conversation:
    """Build a conversation from (role, content) pairs. The content is a text, a recording, a file
    or a list of these.

    A file is given as `bytes`, and is treated as a video if it is an MP4 file, or as an image
    otherwise.
    """
    built: list[ConversationMessage] = []
    recordings: list[npt.NDArray[np.float32]] = []
    images: list[Pixels] = []
    videos: list[Pixels] = []
    for role, content in messages:
        parts: list[Part] = []
        for piece in content if isinstance(content, list) else [content]:
            if isinstance(piece, str):
                parts.append(TextPart(piece))
            elif isinstance(piece, bytes) and piece[4:8] == b"ftyp":
                parts.append(VideoPart(len(videos)))
                videos.append(np.frombuffer(piece, np.uint8))
            elif isinstance(piece, bytes):
                parts.append(ImagePart(len(images)))
                images.append(np.frombuffer(piece, np.uint8))
            else:
                parts.append(AudioPart(len(recordings)))
                recordings.append(piece)
        built.append(ConversationMessage(role, tuple(parts)))  # type: ignore[arg-type]
    return Conversation(tuple(built), tuple(recordings), tuple(images), tuple(videos))


def chat_messages(conversation: Conversation) -> list[dict[str, Any]]:
    """Return the messages of a conversation in the format of chat templates."""
    return [_message_to_template(message) for message in conversation.messages]


def chat_tools(conversation: Conversation) -> list[dict[str, Any]] | None:
    """Return the functions of a conversation in the format of chat templates."""
    return [json.loads(each) for each in conversation.tools] or None


def _message_to_template(message: ConversationMessage) -> dict[str, Any]:
    """Return a message in OpenAI's format, which is also the format of chat templates."""
    written: dict[str, Any] = {"role": message.role}
    written["content"] = [_to_template(part) for part in message.parts]
    if message.tool_call_id:
        written["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        written["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return written


def _to_template(part: Part) -> dict[str, str]:
    """Return a message part in the format of chat templates."""
    match part:
        case TextPart(text):
            return {"type": "text", "text": text}
        case AudioPart():
            return {"type": "audio"}
        case ImagePart():
            return {"type": "image"}
        case VideoPart():
            return {"type": "video"}


def live_chunks(whole: Conversation, sizes: Iterable[int]) -> list[InputChunk]:
    """Return the chunks of a live segment for a conversation that ends with a recording.

    The first chunk contains everything before the recording. The following chunks contain pieces of
    the recording with these sizes. If there are more pieces than sizes, the last size is repeated.
    The final chunk is the end.
    """
    *earlier, last = whole.messages
    *parts, spoken = last.parts
    assert isinstance(spoken, AudioPart)
    opened = structs.replace(last, parts=(*parts, structs.replace(spoken, live=True)))
    known = structs.replace(whole, messages=(*earlier, opened), recordings=whole.recordings[:-1])
    chunks = [InputChunk("input", 0, to_tensors(known))]
    recording, at, more, size = whole.recordings[-1], 0, iter(sizes), 0
    while at < len(recording):
        size = next(more, size)
        chunks.append(InputChunk("input", 0, {"samples": recording[at : at + size]}))
        at += size
    return [*chunks, InputChunk("input", 0, {}, True, FinishReason.STOP)]


def ended_calls(pieces: Iterable[CallPiece]) -> list[ToolCall]:
    """Return the complete calls, with empty IDs.

    Raises `AssertionError` if a call continues without having begun, or begins within another call.
    """
    calls, name, arguments = [], "", ""
    for piece in pieces:
        assert bool(piece.name) != bool(name), piece
        name, arguments = name or piece.name, arguments + piece.arguments
        if piece.ends:
            calls.append(ToolCall("", name, arguments))
            name = arguments = ""
    return calls
