"""The items of a conversation, in order. An item is a message, a function call or the result of a
call. There are limits on their number and total size. This module performs no I/O.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from msgspec import structs

from antiphon.errors import InvalidArgument, NotFound, ResourceExhausted
from antiphon.values.answer import FunctionCall
from antiphon.values.conversation import ConversationMessage, Part, Role, TextPart, ToolCall
from antiphon.values.live_conversation import CallResultPart, Item, RecordedPart, SpokenPart
from antiphon_gateway.media.attachments import Attachments
from antiphon_gateway.media.audio_in import Recording
from antiphon_gateway.media.pcm_recording import PcmRecording

ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""The roles of items."""

FIRST = "root"
"""The ID for the position before the first item."""
ITEM_BYTES, CONTENT_BYTES = 512, 128
"""The approximate overhead in bytes of an item and of each of its parts. It ensures that the number
of empty items is limited, too.
"""
SPOKEN_CHARS_PER_S = 20.0
"""An estimate of the fastest rate at which people speak, in characters per second."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HeardPart(RecordedPart):
    """A recording of the user's speech. `recording` contains the samples, and `pcm16` is filled
    only in `ItemFetched`.
    """

    recording: PcmRecording

    @classmethod
    def of(cls, recording: PcmRecording, transcript: str | None = None) -> HeardPart:
        """Create a part from a recording."""
        return cls(b"", recording.rate_hz, recording.seconds, transcript, recording=recording)


def cut_part(part: SpokenPart, end_s: float, *, complete: bool) -> SpokenPart:
    """Return the part of an answer up to `end_s`. The corresponding position in the text is
    estimated and then moved to the end of a word.

    The model doesn't provide an alignment, so the text is assumed to be spread evenly over the
    audio. If the answer is incomplete, its text may be ahead of its audio by an unknown amount. In
    that case, the text is also limited to what can be spoken in that time.
    """
    seconds = min(end_s, part.audio_s)
    heard = float(len(part.transcript))
    if part.audio_s and end_s < part.audio_s:
        heard *= end_s / part.audio_s
    if not complete:
        heard = min(heard, seconds * SPOKEN_CHARS_PER_S)
    if heard >= len(part.transcript):
        return part
    whole_words = part.transcript[: int(heard) + 1].rpartition(" ")[0]
    return SpokenPart(whole_words, seconds)


def new_id(kind: str) -> str:
    """Return a unique ID with the given prefix, which is `item` or `resp`."""
    return f"{kind}_{uuid.uuid4().hex}"


def item_bytes(item: Item) -> int:
    """Return the number of bytes that an item counts as."""
    size = ITEM_BYTES + len(item.id) + CONTENT_BYTES * len(item.parts)
    for part in item.parts:
        match part:
            case str(text) | SpokenPart(text):
                size += _text_bytes(text)
            case HeardPart(transcript=text, recording=recording):
                size += len(recording.pcm16) + _text_bytes(text or "")
            case FunctionCall(call_id, name, arguments):
                size += len(call_id) + len(name) + _text_bytes(arguments)
            case CallResultPart(call_id, output):
                size += len(call_id) + _text_bytes(output)
    return size


def _text_bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def item_as_heard(item: Item, end_s: float) -> Item:
    """Return a copy of a spoken item that ends at `end_s`."""
    parts = tuple(
        cut_part(each, end_s, complete=item.complete) if isinstance(each, SpokenPart) else each
        for each in item.parts
    )
    return replace(item, parts=parts)


RECORDED_BYTES = item_bytes(Item("user", (HeardPart.of(PcmRecording(b"", 1)),), new_id("item")))
"""The overhead of a committed recording in bytes, in addition to its samples."""


class ItemList:
    """An ordered list of up to `max_items` items with a total size of up to `max_bytes` bytes."""

    def __init__(self, *, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._bytes = 0
        self._items: dict[str, Item] = {}

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size_bytes(self) -> int:
        """The total size of all items in bytes."""
        return self._bytes

    def get(self, item_id: str) -> Item:
        """Return the item with this ID. Raises `NotFound` if there is none."""
        try:
            return self._items[item_id]
        except KeyError:
            raise NotFound(
                f"item_id: the conversation has no item {item_id!r}", field="item_id"
            ) from None

    def insert(self, item: Item, after: str | None = None) -> str | None:
        """Insert an item after another one, or at the end if `after` is None. Returns the ID of the
        preceding item.

        Raises `InvalidArgument` if the item's ID is already in use or `after` doesn't exist, and
        `ResourceExhausted` if the limits are exceeded.
        """
        if item.id in self._items:
            raise InvalidArgument(
                f"item.id: the conversation already has an item {item.id!r}", field="item.id"
            )
        if after not in (None, FIRST) and after not in self._items:
            raise InvalidArgument(
                f"previous_item_id: the conversation has no item {after!r}",
                field="previous_item_id",
            )
        self.check_room(1, item_bytes(item))
        before = list(self._items)
        at = len(before) if after is None else 0 if after == FIRST else before.index(after) + 1
        if at == len(before):
            self._items[item.id] = item
        else:
            ordered = list(self._items.values())
            ordered.insert(at, item)
            self._items = {each.id: each for each in ordered}
        self._bytes += item_bytes(item)
        return before[at - 1] if at else None

    def replace(self, item: Item) -> None:
        """If there is still an item with this ID, replace it."""
        if (old := self._items.get(item.id)) is not None:
            self._bytes += item_bytes(item) - item_bytes(old)
            self._items[item.id] = item

    def remove(self, item_id: str) -> None:
        """Remove an item. Raises `NotFound` if it doesn't exist."""
        self._bytes -= item_bytes(self.get(item_id))
        del self._items[item_id]

    def discard(self, item_id: str) -> bool:
        """Remove an item if it exists and return whether it existed."""
        there = item_id in self._items
        if there:
            self.remove(item_id)
        return there

    def check_room(self, items: int, size_bytes: int) -> None:
        """Raise `ResourceExhausted` if there isn't enough room for the additional items."""
        if len(self._items) + items > self._max_items:
            raise ResourceExhausted(
                f"the conversation has reached the maximum of {len(self._items)} items; delete "
                "some of them"
            )
        if self._bytes + size_bytes > self._max_bytes:
            raise ResourceExhausted(
                f"the conversation uses {self._bytes} bytes and the item needs {size_bytes}, "
                f"which exceeds the maximum of {self._max_bytes} bytes; delete some items"
            )


def messages_of(
    items: Iterable[Item], instructions: str = ""
) -> tuple[tuple[ConversationMessage, ...], Attachments]:
    """Convert the items to messages for the model, starting with the instructions. The recordings
    in the messages are returned as well.

    Function calls are added to the preceding assistant message. Calls that are still being
    generated are left out.
    """
    attachments = Attachments()
    messages: list[ConversationMessage] = []
    if instructions:
        messages.append(ConversationMessage("system", (TextPart(instructions),)))
    for item in items:
        match item.parts:
            case (FunctionCall(),) if not item.complete:
                continue
            case (FunctionCall(call_id, name, arguments),):
                if not messages or messages[-1].role != "assistant":
                    messages.append(ConversationMessage("assistant", ()))
                calls = (*messages[-1].tool_calls, ToolCall(call_id, name, arguments))
                messages[-1] = structs.replace(messages[-1], tool_calls=calls)
            case (CallResultPart(call_id, output),):
                parts = (TextPart(output),) if output else ()
                messages.append(ConversationMessage("tool", parts, (), call_id))
            case _:
                if said := tuple(_parts(item, attachments)):
                    messages.append(ConversationMessage(ROLES[item.role], said))
    return tuple(messages), attachments


def text_to_read(items: Iterable[Item]) -> str:
    """Return the text of all user messages since the last answer, with one line per message.

    Raises `InvalidArgument` if there are no such messages.
    """
    texts: list[str] = []
    for item in items:
        if item.role == "assistant":
            texts.clear()
        elif item.role == "user":
            texts.append("".join(part for part in item.parts if isinstance(part, str)))
    written = [text for text in texts if text.strip()]
    if not written:
        raise InvalidArgument(
            "response: the user has sent no text since the last response; create an item with "
            "text first, or specify the items in response.input",
            field="response",
        )
    return "\n".join(written)


def _parts(item: Item, attachments: Attachments) -> Iterator[Part]:
    for part in item.parts:
        match part:
            case str(text) | SpokenPart(text) if text:
                yield TextPart(text)
            case HeardPart(recording=recording) if recording.pcm16:
                yield attachments.add_recording(Recording(f"items.{item.id}", recording))
