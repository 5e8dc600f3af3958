"""A conversation as the thinker receives it: what the `input` edge carries.

Messages travel as JSON in the tensor `messages`; recordings beside them as
float32 mono tensors `audio.0`, `audio.1`, ... at the rate that the thinker asks
for in `Describe`. A part refers to its recording by index.
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


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message: who says it and its parts in order."""

    role: Role
    parts: tuple[TextPart | AudioPart, ...]


class Conversation(msgspec.Struct, frozen=True):
    """All messages and recordings of a request; recordings are float32 mono arrays."""

    messages: tuple[Message, ...]
    recordings: tuple[Tensor, ...] = ()


_decoder = msgspec.json.Decoder(tuple[Message, ...])


def to_tensors(conversation: Conversation) -> dict[str, Tensor]:
    """The tensors of the one `input` chunk that carries the conversation."""
    tensors: dict[str, Tensor] = {
        "messages": np.frombuffer(msgspec.json.encode(conversation.messages), dtype=np.uint8)
    }
    for index, recording in enumerate(conversation.recordings):
        tensors[f"audio.{index}"] = np.ascontiguousarray(recording, dtype=np.float32)
    return tensors


def from_tensors(tensors: Tensors) -> Conversation:
    """The conversation in an `input` chunk. Raises `InvalidArgument` if it is none."""
    if "messages" not in tensors:
        raise InvalidArgument("input: the tensor `messages` is missing", field="messages")
    try:
        messages = _decoder.decode(tensors["messages"].tobytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"messages: {error}", field="messages") from error
    names = [f"audio.{index}" for index in range(len(tensors) - 1)]
    if missing := [name for name in names if name not in tensors]:
        raise InvalidArgument(f"input: the tensor {missing[0]} is missing", field="messages")
    recordings = tuple(tensors[name] for name in names)
    _check(messages, recordings)
    return Conversation(messages, recordings)


def _check(messages: Sequence[Message], recordings: Sequence[Tensor]) -> None:
    """Raise unless every recording is a used, non-empty, finite float32 vector."""
    used = [
        part.index for message in messages for part in message.parts if isinstance(part, AudioPart)
    ]
    if used != list(range(len(recordings))):
        raise InvalidArgument(
            f"messages: audio parts name the recordings {used}, but {len(recordings)} came",
            field="messages",
        )
    for index, recording in enumerate(recordings):
        if recording.dtype != np.float32 or recording.ndim != 1 or not len(recording):
            raise InvalidArgument(
                f"audio.{index}: must be a non-empty float32 vector", field=f"audio.{index}"
            )
        if not np.isfinite(recording).all():
            raise InvalidArgument(f"audio.{index}: has NaN or Inf", field=f"audio.{index}")
