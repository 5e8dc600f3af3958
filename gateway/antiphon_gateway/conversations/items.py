"""The items of a conversation: what was said by whom, in order. Pure and bounded."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from msgspec import structs

from antiphon.conversation import ConversationMessage, Part, TextPart, ToolCall
from antiphon.errors import InvalidArgument, NotFound, ResourceExhausted
from antiphon_gateway.media.attachments import Attachments
from antiphon_gateway.media.audio_in import Recording
from antiphon_gateway.media.pcm_recording import PcmRecording

Role = Literal["system", "user", "assistant", "tool"]

FIRST = "root"
"""The name of the place before all items."""
ITEM_BYTES, CONTENT_BYTES = 512, 128
"""About what an item, and each of its contents, takes beside texts and recordings, so that empty
ones are bounded."""
SPOKEN_CHARS_PER_S = 20.0
"""About as fast as anybody speaks."""


@dataclass(frozen=True, slots=True)
class WrittenContent:
    """Text that somebody wrote."""

    text: str


@dataclass(frozen=True, slots=True)
class RecordedContent:
    """A user's recording, and what it says, once that is known."""

    audio: PcmRecording
    transcript: str | None = None


@dataclass(frozen=True, slots=True)
class SpokenContent:
    """What the model has said, as text, and how much audio of it was sent."""

    transcript: str
    seconds: float = 0.0

    def cut(self, end_s: float, *, complete: bool) -> SpokenContent:
        """What a listener has heard who stopped at `end_s`: an estimate, at a word's end.

        The model gives no alignment, so text is taken to be spread evenly over the audio. The
        text of an answer that is not complete is ahead of its audio, by how much nobody knows:
        then it has at most as many characters as can be spoken in that time.
        """
        seconds = min(end_s, self.seconds)
        heard = float(len(self.transcript))
        if self.seconds and end_s < self.seconds:
            heard *= end_s / self.seconds
        if not complete:
            heard = min(heard, seconds * SPOKEN_CHARS_PER_S)
        if heard >= len(self.transcript):
            return self
        whole_words = self.transcript[: int(heard) + 1].rpartition(" ")[0]
        return SpokenContent(whole_words, seconds)


def new_id(kind: str) -> str:
    """An id that nothing else has, of an item (`item`) or a response (`resp`)."""
    return f"{kind}_{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class CallContent:
    """A function that the model calls; the one content of its item."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class CallOutput:
    """What came of a call; the one content of its item."""

    call_id: str
    output: str


Content = WrittenContent | RecordedContent | SpokenContent | CallContent | CallOutput


@dataclass(frozen=True, slots=True)
class ConversationItem:
    """One message. `complete` is false while it is being made, and of an interrupted answer."""

    id: str
    role: Role
    contents: tuple[Content, ...] = ()
    complete: bool = True

    @property
    def size_bytes(self) -> int:
        """What it counts for."""
        size = ITEM_BYTES + len(self.id) + CONTENT_BYTES * len(self.contents)
        for content in self.contents:
            match content:
                case WrittenContent(text):
                    size += len(text.encode(errors="surrogatepass"))
                case RecordedContent(audio, text):
                    size += len(audio.pcm16) + len((text or "").encode(errors="surrogatepass"))
                case SpokenContent(transcript):
                    size += len(transcript.encode(errors="surrogatepass"))
                case CallContent(call):
                    size += len(call.id) + len(call.name) + len(call.arguments.encode())
                case CallOutput(call_id, output):
                    size += len(call_id) + len(output.encode(errors="surrogatepass"))
        return size


def item_as_heard(item: ConversationItem, end_s: float) -> ConversationItem:
    """A spoken item of which no more than `end_s` was heard."""
    contents = tuple(
        each.cut(end_s, complete=item.complete) if isinstance(each, SpokenContent) else each
        for each in item.contents
    )
    return replace(item, contents=contents)


RECORDED_BYTES = ConversationItem(
    new_id("item"), "user", (RecordedContent(PcmRecording(b"", 1)),)
).size_bytes
"""What a committed recording counts for beside its samples."""


class ItemList:
    """The items in their order, at most `max_items` of them with `max_bytes` together."""

    def __init__(self, *, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._bytes = 0
        self._items: dict[str, ConversationItem] = {}

    def __iter__(self) -> Iterator[ConversationItem]:
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

    def get(self, item_id: str) -> ConversationItem:
        """The item of that id. Raises `NotFound`."""
        try:
            return self._items[item_id]
        except KeyError:
            raise NotFound(
                f"item_id: the conversation has no item {item_id!r}", field="item_id"
            ) from None

    def insert(self, item: ConversationItem, after: str | None = None) -> str | None:
        """Put an item behind another one (None: at the end); the id of the one before it.

        Raises `InvalidArgument` for an id that is there or a place that is not, and
        `ResourceExhausted` for one too many.
        """
        if item.id in self._items:
            raise InvalidArgument(f"item.id: there is an item {item.id!r} already", field="item.id")
        if after not in (None, FIRST) and after not in self._items:
            raise InvalidArgument(
                f"previous_item_id: the conversation has no item {after!r}",
                field="previous_item_id",
            )
        self.check_room(1, item.size_bytes)
        before = list(self._items)
        at = len(before) if after is None else 0 if after == FIRST else before.index(after) + 1
        if at == len(before):
            self._items[item.id] = item
        else:
            ordered = list(self._items.values())
            ordered.insert(at, item)
            self._items = {each.id: each for each in ordered}
        self._bytes += item.size_bytes
        return before[at - 1] if at else None

    def replace(self, item: ConversationItem) -> None:
        """Put an item in the place of the one with its id, if that is still there."""
        if (old := self._items.get(item.id)) is not None:
            self._bytes += item.size_bytes - old.size_bytes
            self._items[item.id] = item

    def remove(self, item_id: str) -> None:
        """Take an item out. Raises `NotFound`."""
        self._bytes -= self.get(item_id).size_bytes
        del self._items[item_id]

    def discard(self, item_id: str) -> bool:
        """Take an item out if it is there, and say whether it was."""
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
    items: Iterable[ConversationItem], instructions: str = ""
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
        match item.contents:
            case (CallContent(),) if not item.complete:
                continue
            case (CallContent(call),):
                if not messages or messages[-1].role != "assistant":
                    messages.append(ConversationMessage("assistant", ()))
                calls = (*messages[-1].tool_calls, call)
                messages[-1] = structs.replace(messages[-1], tool_calls=calls)
            case (CallOutput(call_id, output),):
                parts = (TextPart(output),) if output else ()
                messages.append(ConversationMessage("tool", parts, (), call_id))
            case _:
                if said := tuple(_parts(item, attachments)):
                    messages.append(ConversationMessage(item.role, said))
    return tuple(messages), attachments


def _parts(item: ConversationItem, attachments: Attachments) -> Iterator[Part]:
    for content in item.contents:
        match content:
            case WrittenContent(text) | SpokenContent(text) if text:
                yield TextPart(text)
            case RecordedContent(audio) if audio.pcm16:
                yield attachments.add_recording(Recording(f"items.{item.id}", audio))
