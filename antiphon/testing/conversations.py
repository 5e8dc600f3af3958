"""Conversations in short, and as chat templates take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from antiphon.conversation import (
    AudioPart,
    Conversation,
    ConversationMessage,
    ImagePart,
    Part,
    TextPart,
    VideoPart,
)

Pixels = npt.NDArray[np.uint8]


def conversation(
    *messages: tuple[str, str | npt.NDArray[np.float32] | list[Any]],
) -> Conversation:
    """Shorthand: (role, content) pairs; content is text, a recording, a file, or a list of them.

    A file is `bytes`: a video if they say MP4, else an image.
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
    """The messages of a conversation as chat templates take them."""
    return [
        {"role": message.role, "content": [_to_template(part) for part in message.parts]}
        for message in conversation.messages
    ]


def _to_template(part: Part) -> dict[str, str]:
    """A message part as chat templates take it."""
    match part:
        case TextPart(text):
            return {"type": "text", "text": text}
        case AudioPart():
            return {"type": "audio"}
        case ImagePart():
            return {"type": "image"}
        case VideoPart():
            return {"type": "video"}
