"""A conversation as the stage that reads it gets it: what the `input` edge carries.

Messages travel as JSON in the tensor `messages`; beside them recordings as float32
mono tensors `audio.0`, `audio.1`, ... at the rate that the stage asks for in
`Describe`, and images and videos as the bytes of their files, uint8 tensors `image.0`,
..., `video.0`, .... A part refers to what it shows or plays by index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from antiphon.chunk import Tensor, Tensors
from antiphon.errors import InvalidArgument

Role = Literal["system", "user", "assistant"]


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="text"):
    """Words."""

    text: str


class AudioPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="audio"):
    """A recording, by its index among the conversation's recordings."""

    index: int


class ImagePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="image"):
    """An image, by its index among the conversation's images."""

    index: int


class VideoPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="video"):
    """A video, by its index among the conversation's videos."""

    index: int


Part = TextPart | AudioPart | ImagePart | VideoPart


class ConversationMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message: who says it and its parts in order."""

    role: Role
    parts: tuple[Part, ...]


class Conversation(msgspec.Struct, frozen=True):
    """All messages of a request and what their parts refer to.

    Recordings are float32 mono vectors; images and videos are whole files, uint8 vectors.
    """

    messages: tuple[ConversationMessage, ...]
    recordings: tuple[Tensor, ...] = ()
    images: tuple[Tensor, ...] = ()
    videos: tuple[Tensor, ...] = ()


# Tensor names before the index: the part that refers to one, and its dtype.
_MEDIA: dict[str, tuple[type[AudioPart | ImagePart | VideoPart], type[np.generic]]] = {
    "audio": (AudioPart, np.float32),
    "image": (ImagePart, np.uint8),
    "video": (VideoPart, np.uint8),
}

_decoder = msgspec.json.Decoder(tuple[ConversationMessage, ...])


def to_tensors(conversation: Conversation) -> dict[str, Tensor]:
    """The tensors of the one `input` chunk that carries the conversation."""
    tensors: dict[str, Tensor] = {
        "messages": np.frombuffer(msgspec.json.encode(conversation.messages), dtype=np.uint8)
    }
    media = (conversation.recordings, conversation.images, conversation.videos)
    for (name, (_, dtype)), items in zip(_MEDIA.items(), media, strict=True):
        for index, item in enumerate(items):
            tensors[f"{name}.{index}"] = np.ascontiguousarray(item, dtype=dtype)
    return tensors


def from_tensors(tensors: Tensors) -> Conversation:
    """The conversation in an `input` chunk. Raises `InvalidArgument` if it is none."""
    if "messages" not in tensors:
        raise InvalidArgument("input: the tensor `messages` is missing", field="messages")
    try:
        messages = _decoder.decode(tensors["messages"].tobytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"messages: {error}", field="messages") from error
    media = {name: _items(tensors, name) for name in _MEDIA}
    taken = {"messages", *(f"{name}.{at}" for name in media for at in range(len(media[name])))}
    if strange := sorted(tensors.keys() - taken):
        raise InvalidArgument(f"input: there is no place for {strange[0]}", field="messages")
    for name, items in media.items():
        _check(messages, name, items)
    return Conversation(messages, media["audio"], media["image"], media["video"])


def _items(tensors: Tensors, name: str) -> tuple[Tensor, ...]:
    """The tensors `name.0`, `name.1`, ... up to the first that is not there."""
    items: list[Tensor] = []
    while (item := tensors.get(f"{name}.{len(items)}")) is not None:
        items.append(item)
    return tuple(items)


def _check(messages: Sequence[ConversationMessage], name: str, items: Sequence[Tensor]) -> None:
    """Raise unless every item is a used, non-empty vector of its dtype, finite if of floats."""
    kind, dtype = _MEDIA[name]
    used = [part.index for message in messages for part in message.parts if isinstance(part, kind)]
    if used != list(range(len(items))):
        raise InvalidArgument(
            f"messages: {name} parts name the items {used}, but {len(items)} came",
            field="messages",
        )
    for index, item in enumerate(items):
        field = f"{name}.{index}"
        if item.dtype != dtype or item.ndim != 1 or not len(item):
            raise InvalidArgument(
                f"{field}: must be a non-empty {dtype.__name__} vector", field=field
            )
        if dtype is np.float32 and not np.isfinite(item).all():
            raise InvalidArgument(f"{field}: has NaN or Inf", field=field)
