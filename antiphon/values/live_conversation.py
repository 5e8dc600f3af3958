"""The vocabulary of conversations: commands, events, items and settings, whatever the protocol.

The SDK hands out these classes, the gateway carries out these commands and emits these events, and
its endpoints translate between them and their protocols. Seconds are floats, audio is 16-bit
little-endian mono.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from antiphon.errors import AntiphonError
from antiphon.values.answer import FunctionCall, Usage
from antiphon.values.brief import brief
from antiphon.values.sampling import SamplingRequest

ReplyStatus = Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]

EndedBy = Literal["max_output_tokens", "client_cancelled", "turn_detected", ""]


@dataclass(frozen=True, slots=True)
class VoiceTurns:
    """The user's turns begin and end by voice.

    Sound is speech from a probability of `threshold` on; `silence_s` (0.032 to 60) without it end
    a turn, which has `prefix_padding_s` (at most 10) of what was heard before. A turn is answered
    if it `creates_response`, and speech ends the answer that is being made if it
    `interrupts_response`. `idle_timeout_s` (0.1 to 120) after an answer has been played without
    anybody speaking the model is asked again.
    """

    threshold: float = 0.5
    prefix_padding_s: float = 0.3
    silence_s: float = 0.5
    creates_response: bool = True
    interrupts_response: bool = True
    idle_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class TimedTurns:
    """The user's turns end by the clock: every `answer_every_s` seconds of audio, from 0.5 on, are
    a message of their own, and answered. What comes while an answer is being made waits: each
    slice has an answer, one after the other.
    """

    answer_every_s: float


@dataclass(frozen=True, slots=True)
class TranscriptOptions:
    """What the user says is written down: its language (ISO 639-1), and what is known of it."""

    language: str = ""
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class RecordedPart:
    """What a user said: 16-bit little-endian mono samples, `rate_hz` (8000 to 48000) a second.

    In events `pcm16` is empty, but for `ItemFetched`, `audio_s` says how long it is, seconds, and
    `transcript` what it says, once that is known.
    """

    pcm16: bytes
    rate_hz: int = 24_000
    audio_s: float = 0.0
    transcript: str | None = None

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, slots=True)
class SpokenPart:
    """What the assistant said, as text, and how many seconds of audio there were of it."""

    transcript: str
    audio_s: float = 0.0

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, slots=True)
class CallResultPart:
    """What came of a call of a function: the only part of its item, whose role is "tool"."""

    call_id: str
    output: str

    def __repr__(self) -> str:
        return brief(self)


ItemPart = str | RecordedPart | SpokenPart | FunctionCall | CallResultPart


@dataclass(frozen=True, slots=True)
class Item:
    """One message of a conversation. A `str` among its parts is text. A function's call, and what
    came of it, are items of their own.

    `complete` is told alone: false of an answer that was interrupted, or is being made.
    """

    role: str
    parts: tuple[ItemPart, ...]
    id: str = ""
    complete: bool = True

    def __repr__(self) -> str:
        return brief(self)

    @property
    def text(self) -> str:
        """What is written or said in it."""
        return "".join(
            part.transcript if isinstance(part, SpokenPart) else part
            for part in self.parts
            if isinstance(part, str | SpokenPart)
        )


@dataclass(frozen=True, slots=True)
class HeldSettings:
    """The settings that hold; see `ConversationOptions`. Events have recordings among `options` as
    empty bytes."""

    instructions: str = ""
    spoken: bool = True
    voice: str = ""
    sampling: Mapping[str, SamplingRequest] = field(default_factory=dict)
    turns: VoiceTurns | TimedTurns | None = None
    transcripts: TranscriptOptions | None = None
    options: Mapping[str, str | float | bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConversationReply:
    """A response as it stands. `items`, and `usage` or `error`, are there when it is over.

    `reason` says why it ended before it was complete.
    """

    id: str
    status: ReplyStatus
    out_of_band: bool = False
    metadata: Mapping[str, str] | None = None
    items: tuple[Item, ...] = ()
    usage: Usage | None = None
    error: AntiphonError | None = None
    reason: EndedBy = ""

    @property
    def text(self) -> str:
        """What it says."""
        return "".join(item.text for item in self.items)


@dataclass(frozen=True, slots=True)
class ConversationOpened:
    """What is served and what holds. `sample_rate_hz` is that of answers, 0 without audio.

    It comes again when the server was lost and another one goes on: an answer that was being made
    ends then, "failed", with as much of it as has come, and what was not carried out is sent again.
    """

    model: str
    sample_rate_hz: int
    voices: tuple[str, ...]
    settings: HeldSettings


@dataclass(frozen=True, slots=True)
class SettingsUpdated:
    """What holds now."""

    settings: HeldSettings


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """A command was not carried out; the conversation goes on. `reference` is the caller's own."""

    error: AntiphonError
    reference: str = ""


@dataclass(frozen=True, slots=True)
class AudioAccepted:
    """The audio so far is an item now, which `ItemCreated` tells next."""

    item_id: str
    previous_item_id: str = ""


@dataclass(frozen=True, slots=True)
class AudioDropped:
    """The buffer of audio is empty."""


@dataclass(frozen=True, slots=True)
class SpeechBegan:
    """The user speaks. The item that this becomes has audio from `start_s` of all audio sent."""

    item_id: str
    start_s: float


@dataclass(frozen=True, slots=True)
class SpeechEnded:
    """The user's turn is over, at `end_s` of all audio sent; `AudioAccepted` follows."""

    item_id: str
    end_s: float


@dataclass(frozen=True, slots=True)
class SilencePassed:
    """Nobody has spoken for `idle_timeout_s`; what was heard becomes the item."""

    item_id: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class ServerStopping:
    """The server was told to stop: the call ends with `Unavailable` when what is being answered has
    been told, within so many seconds at the latest. Another call goes to another server."""

    within_s: float


@dataclass(frozen=True, slots=True)
class ItemCreated:
    """A message is in the conversation. Those of responses have events of their own."""

    item: Item
    previous_item_id: str = ""


@dataclass(frozen=True, slots=True)
class ItemFetched:
    """The item that was asked for, with its recordings."""

    item: Item


@dataclass(frozen=True, slots=True)
class ItemRemoved:
    """The item is in the conversation no more."""

    item_id: str


@dataclass(frozen=True, slots=True)
class ItemCut:
    """The item has no more than was heard."""

    item_id: str
    heard_s: float


@dataclass(frozen=True, slots=True)
class TranscriptDelta:
    """More of what the user said in a recording, `index` of the item's parts."""

    item_id: str
    text: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class TranscriptDone:
    """All that the user said in a recording."""

    item_id: str
    text: str
    usage: Usage
    index: int = 0


@dataclass(frozen=True, slots=True)
class TranscriptLost:
    """What the user said in a recording will not be told."""

    item_id: str
    error: AntiphonError
    index: int = 0


@dataclass(frozen=True, slots=True)
class ResponseStarted:
    """A response is being made."""

    response: ConversationReply


@dataclass(frozen=True, slots=True)
class ResponseItemStarted:
    """A message of a response is there, and empty."""

    response_id: str
    item_id: str
    index: int = 0
    previous_item_id: str = ""


@dataclass(frozen=True, slots=True)
class ResponseTextDelta:
    """More text, whole characters only; of a spoken message it may be ahead of the audio."""

    response_id: str
    item_id: str
    text: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class ResponseAudioDelta:
    """More audio: 16-bit little-endian mono samples at the conversation's `sample_rate_hz`."""

    response_id: str
    item_id: str
    pcm16: bytes
    index: int = 0

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, slots=True)
class ResponseFunctionCallDelta:
    """More of a call's `arguments`, as they are written.

    It is a call once `ResponseFunctionCall` tells it whole. The item of one that proves to be none,
    or is cancelled before, is deleted (`ItemRemoved`).
    """

    response_id: str
    item_id: str
    call_id: str
    name: str
    arguments: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class ResponseFunctionCall:
    """A call of a function. Say what came of it with `answer_call`, then ask for a response."""

    response_id: str
    item_id: str
    call: FunctionCall
    index: int = 0


@dataclass(frozen=True, slots=True)
class ResponseItemDone:
    """Nothing more of a message follows."""

    response_id: str
    item: Item
    index: int = 0


@dataclass(frozen=True, slots=True)
class ResponseDone:
    """A response is over, as its `status` says; nothing more of it follows."""

    response: ConversationReply


TalkEvent = (
    ConversationOpened
    | SettingsUpdated
    | CommandFailed
    | AudioAccepted
    | AudioDropped
    | SpeechBegan
    | SpeechEnded
    | SilencePassed
    | ServerStopping
    | ItemCreated
    | ItemFetched
    | ItemRemoved
    | ItemCut
    | TranscriptDelta
    | TranscriptDone
    | TranscriptLost
    | ResponseStarted
    | ResponseItemStarted
    | ResponseTextDelta
    | ResponseAudioDelta
    | ResponseFunctionCallDelta
    | ResponseFunctionCall
    | ResponseItemDone
    | ResponseDone
)


@dataclass(frozen=True, slots=True)
class ConversationSaved:
    """What another gateway needs to continue the conversation; replaces the previous one. The
    client goes on with it by itself.

    `token` is empty if the conversation cannot be resumed as it stands. It covers the client's
    first `commands` messages; the audio of the first `audio_commands` is an item, or was dropped.
    """

    token: bytes
    commands: int
    audio_commands: int


@dataclass(frozen=True, slots=True)
class ChangeSettings:
    """Use these settings from now on: `SettingsUpdated`."""

    settings: HeldSettings


@dataclass(frozen=True, slots=True)
class AppendAudio:
    """Append audio to the input buffer, `rate_hz` samples a second."""

    pcm16: bytes
    rate_hz: int


@dataclass(frozen=True, slots=True)
class CommitAudio:
    """Make the buffered audio a user's message: `AudioAccepted`, `ItemCreated`."""


@dataclass(frozen=True, slots=True)
class ClearAudio:
    """Drop the buffered audio: `AudioDropped`."""


@dataclass(frozen=True, slots=True)
class CreateItem:
    """Insert an item after another one (None: at the end; "root": first): `ItemCreated`. An item
    without an id gets one."""

    item: Item
    after: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteItem:
    """Remove an item: `ItemRemoved`."""

    item_id: str


@dataclass(frozen=True, slots=True)
class RetrieveItem:
    """Return an item with its recordings: `ItemFetched`."""

    item_id: str


@dataclass(frozen=True, slots=True)
class TruncateItem:
    """Keep the first `heard_s` seconds of a spoken item's part: `ItemCut`."""

    item_id: str
    heard_s: float
    part: int = 0


@dataclass(frozen=True, slots=True)
class CreateResponse:
    """Answer the conversation, or `given` in its place: items, and ids of the conversation's items.

    Without settings those of the conversation hold. A response that is `out_of_band` adds no item
    to the conversation. `metadata` comes back with the response.
    """

    settings: HeldSettings | None = None
    out_of_band: bool = False
    given: tuple[Item | str, ...] | None = None
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class CancelResponse:
    """End that response (empty: the one that answers the conversation): `ResponseDone`."""

    response_id: str = ""


Command = (
    ChangeSettings
    | AppendAudio
    | CommitAudio
    | ClearAudio
    | CreateItem
    | DeleteItem
    | RetrieveItem
    | TruncateItem
    | CreateResponse
    | CancelResponse
)
