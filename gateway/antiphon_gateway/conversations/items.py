"""The ordered items of a conversation: messages, calls and their results. Pure and bounded."""

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
"""The name of the place before all items."""
ITEM_BYTES, CONTENT_BYTES = 512, 128
"""About what an item, and each of its contents, takes beside texts and recordings, so that empty
ones are bounded."""
SPOKEN_CHARS_PER_S = 20.0
"""About as fast as anybody speaks."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HeardPart(RecordedPart):
    """A user's recording: its samples are in `recording`; `pcm16` is empty but in `ItemFetched`."""

    recording: PcmRecording

    @classmethod
    def of(cls, recording: PcmRecording, transcript: str | None = None) -> HeardPart:
        """The part of a recording."""
        return cls(b"", recording.rate_hz, recording.seconds, transcript, recording=recording)


def cut_part(part: SpokenPart, end_s: float, *, complete: bool) -> SpokenPart:
    """Return the part of an answer up to `end_s`: an estimate, cut at the end of a word.

    The model gives no alignment, so that text is assumed to be spread evenly over the audio. The
    text of an incomplete answer is ahead of its audio by an unknown amount. It is limited to the
    characters that can be spoken in that time.
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
    """An id that nothing else has, of an item (`item`) or a response (`resp`)."""
    return f"{kind}_{uuid.uuid4().hex}"


def item_bytes(item: Item) -> int:
    """What an item counts for."""
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
    """Return a spoken item, cut at `end_s`."""
    parts = tuple(
        cut_part(each, end_s, complete=item.complete) if isinstance(each, SpokenPart) else each
        for each in item.parts
    )
    return replace(item, parts=parts)


RECORDED_BYTES = item_bytes(Item("user", (HeardPart.of(PcmRecording(b"", 1)),), new_id("item")))
"""What a committed recording counts for beside its samples."""


class ItemList:
    """The items in their order, at most `max_items` of them with `max_bytes` together."""

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
        """What all of them count for."""
        return self._bytes

    @property
    def last_id(self) -> str | None:
        """The id of the last item."""
        return next(reversed(self._items), None)

    def get(self, item_id: str) -> Item:
        """The item of that id. Raises `NotFound`."""
        try:
            return self._items[item_id]
        except KeyError:
            raise NotFound(
                f"item_id: the conversation has no item {item_id!r}", field="item_id"
            ) from None

    def insert(self, item: Item, after: str | None = None) -> str | None:
        """Insert an item after another one (None: at the end), and return the id of the previous
        item.

        Raises `InvalidArgument` for an existing id or an unknown place, and `ResourceExhausted` for
        too many items.
        """
        if item.id in self._items:
            raise InvalidArgument(f"item.id: there is an item {item.id!r} already", field="item.id")
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
        """Put an item in the place of the one with its id, if that is still there."""
        if (old := self._items.get(item.id)) is not None:
            self._bytes += item_bytes(item) - item_bytes(old)
            self._items[item.id] = item

    def remove(self, item_id: str) -> None:
        """Take an item out. Raises `NotFound`."""
        self._bytes -= item_bytes(self.get(item_id))
        del self._items[item_id]

    def discard(self, item_id: str) -> bool:
        """Remove an item if it exists, and return whether it did."""
        there = item_id in self._items
        if there:
            self.remove(item_id)
        return there

    def check_room(self, items: int, size_bytes: int) -> None:
        """Raise `ResourceExhausted` when there is no room for so many more."""
        if len(self._items) + items > self._max_items:
            raise ResourceExhausted(
                f"the conversation has {len(self._items)} items, which is the most; delete some"
            )
        if self._bytes + size_bytes > self._max_bytes:
            raise ResourceExhausted(
                f"the conversation takes {self._bytes} bytes, and the item {size_bytes}; "
                f"the most is {self._max_bytes}: delete some items"
            )


def messages_of(
    items: Iterable[Item], instructions: str = ""
) -> tuple[tuple[ConversationMessage, ...], Attachments]:
    """The items as messages for the model, instructions first, and their recordings.

    A call belongs to the message of the assistant that it follows; one that is still being written
    is none yet.
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
    """The text of the user's messages since the last answer, one line per message.

    Raises `InvalidArgument` if there is none.
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
            "response: there is no text of the user since the last response; create an item with "
            "text first, or name items in the input of the response",
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
