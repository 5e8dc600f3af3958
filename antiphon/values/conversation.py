"""A conversation as a stage receives it on the `input` edge.

The tensor `messages` contains the messages as JSON. Recordings are float32 mono tensors named
`audio.0`, `audio.1` and so on, at the sample rate that the stage reports in `Describe`. If the
stage already has a recording, the recording's key is sent in its place (`recording_key`, uint8).
Images and videos are uint8 tensors that contain the bytes of their files. They are named `image.0`,
`video.0` and so on. Message parts refer to media by index. If the model may call functions, the
tensor `tools` contains them as JSON. Chat template variables, if any, are in the tensor `template`,
also as JSON.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from antiphon.errors import InvalidArgument
from antiphon.values.chunk import Tensor, Tensors
from antiphon.values.template import FIELD as TEMPLATE_FIELD
from antiphon.values.template import TemplateValue, check_template_variables

Role = Literal["system", "user", "assistant", "tool"]

FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Matches function names that OpenAI accepts."""


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="text"):
    """A text part of a message."""

    text: str


class AudioPart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="audio"
):
    """A recording in a message. `index` is its position among the conversation's recordings.

    If one recording is `alone`, then all of them are. This means that each recording is encoded
    independently of the others. Only the last recording can be `live`, which means that it is still
    in progress. Its samples follow the conversation in pieces.
    """

    index: int
    alone: bool = False
    live: bool = False


class ImagePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="image"):
    """An image, referred to by its index among the conversation's images."""

    index: int


class VideoPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="video"):
    """A video, referred to by its index among the conversation's videos."""

    index: int


Part = TextPart | AudioPart | ImagePart | VideoPart


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function call made by the assistant. `arguments` is the text of a JSON object.

    `id` identifies the call when the client sends its result.
    """

    id: str
    name: str
    arguments: str


class ConversationMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message, which consists of a role and a sequence of parts.

    Only messages from the assistant can have `tool_calls`. Only messages with the role `tool` can
    have a `tool_call_id`. Such a message contains the result of the call with that ID.
    """

    role: Role
    parts: tuple[Part, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


class ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules for function calls in a reply.

    `forced` is the name of the function that must be called. If it is empty, the model must call a
    function, but can choose which one. If it is None, no call is required. If `parallel` is false,
    the reply ends after its first call.
    """

    forced: str | None = None
    parallel: bool = True


class Conversation(msgspec.Struct, frozen=True):
    """All messages of a request, together with the media they refer to.

    Recordings are either float32 mono vectors or the keys of recordings that the stage already has.
    Images and videos are uint8 vectors with the content of a complete file. `tools` contains the
    functions that may be called in the reply. Each of them is the JSON text of OpenAI's `{"type":
    "function", "function": {"name": ..., "description": ..., "parameters": ...}}`. `template`
    contains the chat template variables.
    """

    messages: tuple[ConversationMessage, ...]
    recordings: tuple[Tensor, ...] = ()
    images: tuple[Tensor, ...] = ()
    videos: tuple[Tensor, ...] = ()
    tools: tuple[str, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    template: Mapping[str, TemplateValue] = {}


class _ToolsTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tools: tuple[str, ...]
    choice: ToolChoice


class _Function(msgspec.Struct, frozen=True):
    name: str


class _Tool(msgspec.Struct, frozen=True):
    function: _Function
    type: Literal["function"]


TOOLS = "tools"
TEMPLATE = "template"
MAX_TEMPLATE_BYTES = 128 << 10
"""The maximum size of the variables as JSON, in bytes. A character can take up to six bytes, and a
surrogate pair can take up to twelve.
"""

KEY_BYTES = 16
"""The size of a recording's key in bytes."""

# Maps the name of a tensor, without its index, to the part that refers to it and to its dtype.
_MEDIA: dict[str, tuple[type[AudioPart | ImagePart | VideoPart], type[np.generic]]] = {
    "audio": (AudioPart, np.float32),
    "image": (ImagePart, np.uint8),
    "video": (VideoPart, np.uint8),
}

_decoder = msgspec.json.Decoder(tuple[ConversationMessage, ...])
_tools_decoder = msgspec.json.Decoder(_ToolsTensor)
_template_decoder = msgspec.json.Decoder(dict[str, TemplateValue])
_tool_decoder = msgspec.json.Decoder(_Tool)


def function_names(tools: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the functions in order. See `Conversation.tools` for the format.

    Raises `InvalidArgument` if a function is malformed, or if a name is invalid or not unique.
    """
    names: list[str] = []
    for index, tool in enumerate(tools):
        field = f"tools[{index}]"
        try:
            name = _tool_decoder.decode(tool).function.name
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
            raise InvalidArgument(f"{field}: {error}", field=field) from error
        if FUNCTION_NAME.fullmatch(name) is None:
            raise InvalidArgument(
                f"{field}.function.name: must be 1 to 64 letters, digits, _ or -", field=field
            )
        if name in names:
            raise InvalidArgument(
                f"{field}.function.name: another function has the name {name}", field=field
            )
        names.append(name)
    return tuple(names)


def to_tensors(conversation: Conversation) -> dict[str, Tensor]:
    """Return the tensors of an `input` chunk that contains this conversation."""
    tensors: dict[str, Tensor] = {
        "messages": np.frombuffer(msgspec.json.encode(conversation.messages), dtype=np.uint8)
    }
    media = (conversation.recordings, conversation.images, conversation.videos)
    for (name, (_, dtype)), items in zip(_MEDIA.items(), media, strict=True):
        for index, item in enumerate(items):
            kind = item.dtype if name == "audio" and is_recording_key(item) else dtype
            tensors[f"{name}.{index}"] = np.ascontiguousarray(item, dtype=kind)
    if conversation.tools:
        tools = _ToolsTensor(conversation.tools, conversation.tool_choice)
        tensors[TOOLS] = np.frombuffer(msgspec.json.encode(tools), dtype=np.uint8)
    if conversation.template:
        variables = msgspec.json.encode(conversation.template)
        tensors[TEMPLATE] = np.frombuffer(variables, dtype=np.uint8)
    return tensors


class RecordingKey:
    """Computes a recording's key from its samples, piece by piece."""

    def __init__(self) -> None:
        # SHA-256 takes half as long as BLAKE2, because CPUs have instructions for it.
        self._hash = hashlib.sha256(usedforsecurity=False)
        self.samples = 0

    def add(self, samples: Tensor) -> None:
        """Add more samples, in float32."""
        self._hash.update(np.ascontiguousarray(samples).data)
        self.samples += len(samples)

    @property
    def key(self) -> bytes:
        """The key of all samples added so far."""
        return self._hash.digest()[:KEY_BYTES]


def recording_key(samples: Tensor) -> bytes:
    """Return the key of a complete float32 recording."""
    key = RecordingKey()
    key.add(samples)
    return key.key


def is_recording_key(item: Tensor) -> bool:
    """Return whether the item is a recording's key rather than its samples."""
    return item.dtype == np.uint8


def recordings_alone(messages: Sequence[ConversationMessage]) -> bool:
    """Return whether each recording is encoded independently of the other recordings."""
    return any(
        isinstance(part, AudioPart) and part.alone for each in messages for part in each.parts
    )


def with_recordings_alone(
    messages: Sequence[ConversationMessage],
) -> tuple[ConversationMessage, ...]:
    """Return a copy of the messages in which every recording is `alone`."""
    return tuple(
        msgspec.structs.replace(
            each,
            parts=tuple(
                msgspec.structs.replace(part, alone=True) if isinstance(part, AudioPart) else part
                for part in each.parts
            ),
        )
        for each in messages
    )


def from_tensors(tensors: Tensors, *, live: bool = False) -> Conversation:
    """Return the conversation in an `input` chunk. If `live` is true, the last recording is left
    out.

    Raises `InvalidArgument` if the chunk is malformed.
    """
    if "messages" not in tensors:
        raise InvalidArgument("input: the tensor `messages` is missing", field="messages")
    try:
        messages = _decoder.decode(tensors["messages"].tobytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"messages: {error}", field="messages") from error
    media = {name: _items(tensors, name) for name in _MEDIA}
    taken = {"messages", *(f"{name}.{at}" for name in media for at in range(len(media[name])))}
    tools = _tools(tensors)
    if strange := sorted(tensors.keys() - taken - {TOOLS, TEMPLATE}):
        raise InvalidArgument(
            f"input: the tensor {strange[0]} is not expected here", field="messages"
        )
    for name, items in media.items():
        _check(messages, name, items, live=live and name == "audio")
    _check_calls(messages)
    return Conversation(
        messages,
        media["audio"],
        media["image"],
        media["video"],
        tools.tools,
        tools.choice,
        _template(tensors),
    )


def _template(tensors: Tensors) -> dict[str, TemplateValue]:
    """Return the variables of the chat template."""
    if TEMPLATE not in tensors:
        return {}
    return read_template_variables(tensors[TEMPLATE].tobytes())


def read_template_variables(data: bytes) -> dict[str, TemplateValue]:
    """Parse chat template variables from JSON. Raises `InvalidArgument` if they are invalid."""
    if len(data) > MAX_TEMPLATE_BYTES:
        raise InvalidArgument(
            f"{TEMPLATE_FIELD}: has {len(data)} bytes; the maximum is {MAX_TEMPLATE_BYTES}",
            field=TEMPLATE_FIELD,
        )
    try:
        variables = _template_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{TEMPLATE_FIELD}: {error}", field=TEMPLATE_FIELD) from error
    check_template_variables(variables)
    return variables


def _tools(tensors: Tensors) -> _ToolsTensor:
    """Return the functions that may be called."""
    if TOOLS not in tensors:
        return _ToolsTensor((), ToolChoice())
    try:
        tools = _tools_decoder.decode(tensors[TOOLS].tobytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"tools: {error}", field="tools") from error
    names = function_names(tools.tools)
    forced = tools.choice.forced
    if forced and forced not in names:
        raise InvalidArgument(
            f"tool_choice: unknown function {forced!r}; use one of: {', '.join(names)}",
            field="tool_choice",
        )
    return tools


def _check_calls(messages: Sequence[ConversationMessage]) -> None:
    """Raise an error if a message that isn't from the assistant contains calls, or if a result
    isn't in a tool message.
    """
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if message.tool_calls and message.role != "assistant":
            raise InvalidArgument(f"{path}: {message.role} calls no tools", field="messages")
        if message.tool_call_id and message.role != "tool":
            raise InvalidArgument(f"{path}: {message.role} answers no call", field="messages")


def _items(tensors: Tensors, name: str) -> tuple[Tensor, ...]:
    """Return the tensors `name.0`, `name.1` and so on. The first missing tensor ends the list."""
    items: list[Tensor] = []
    while (item := tensors.get(f"{name}.{len(items)}")) is not None:
        items.append(item)
    return tuple(items)


def _check(
    messages: Sequence[ConversationMessage], name: str, items: Sequence[Tensor], *, live: bool
) -> None:
    """Raise an error unless each item is referenced and is a non-empty vector with the right dtype
    and finite values.
    """
    kind, dtype = _MEDIA[name]
    if live:
        messages = _without_live(messages)
    used = [part.index for message in messages for part in message.parts if isinstance(part, kind)]
    if used != list(range(len(items))):
        raise InvalidArgument(
            f"messages: {name} parts refer to the items {used}, but {len(items)} items were sent",
            field="messages",
        )
    for index, item in enumerate(items):
        field = f"{name}.{index}"
        if name == "audio" and is_recording_key(item):
            if item.shape != (KEY_BYTES,) or not recordings_alone(messages):
                raise InvalidArgument(
                    f"{field}: a recording's key has {KEY_BYTES} bytes, and recordings that are "
                    "told by one are `alone`",
                    field=field,
                )
            continue
        if item.dtype != dtype or item.ndim != 1 or not len(item):
            raise InvalidArgument(
                f"{field}: must be a non-empty {dtype.__name__} vector", field=field
            )
        if dtype is np.float32 and not np.isfinite(item).all():
            raise InvalidArgument(f"{field}: contains NaN or infinity", field=field)


def _without_live(messages: Sequence[ConversationMessage]) -> Sequence[ConversationMessage]:
    """Return the messages without the live recording. If the messages don't end with it, raises an
    error.
    """
    last = messages[-1] if messages else None
    part = last.parts[-1] if last is not None and last.parts else None
    if last is None or last.role != "user" or not isinstance(part, AudioPart) or not part.live:
        raise InvalidArgument(
            "messages: in a live segment, they must end with a recording of the user that is "
            "`live`",
            field="messages",
        )
    return [*messages[:-1], ConversationMessage(last.role, last.parts[:-1])]
