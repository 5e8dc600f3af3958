"""The vocabulary of conversations: commands, events, items and settings, for every protocol.

The SDK exposes these classes. The gateway executes these commands and emits these events, and its
endpoints translate between them and their protocols. Seconds are floats. Audio is 16-bit
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
    """Turn detection by voice activity.

    Audio counts as speech from a probability of `threshold`. `silence_s` (0.032 to 60) without
    speech ends a turn. The turn includes `prefix_padding_s` (at most 10) of audio before the
    speech. A turn is answered if `creates_response`. Speech interrupts the current answer if
    `interrupts_response`. If the user does not speak for `idle_timeout_s` (0.1 to 120) after an
    answer was played, the model is asked to continue.
    """

    threshold: float = 0.5
    prefix_padding_s: float = 0.3
    silence_s: float = 0.5
    creates_response: bool = True
    interrupts_response: bool = True
    idle_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class TimedTurns:
    """Turns of fixed duration: every `answer_every_s` seconds of audio (at least 0.5) form a
    message and are answered.

    Slices that arrive during an answer are queued. Each slice is answered, in order.
    """

    answer_every_s: float


@dataclass(frozen=True, slots=True)
class TranscriptOptions:
    """Transcription of the user's speech: its language (ISO 639-1) and a prompt for context."""

    language: str = ""
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class RecordedPart:
    """A user's speech: 16-bit little-endian mono samples, `rate_hz` (8000 to 48000) per second.

    In events `pcm16` is empty, except in `ItemFetched`; `audio_s` is its length in seconds.
    `transcript` is its text, once known.
    """

    pcm16: bytes
    rate_hz: int = 24_000
    audio_s: float = 0.0
    transcript: str | None = None

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, slots=True)
class SpokenPart:
    """The assistant's speech as text, and the seconds of its audio."""

    transcript: str
    audio_s: float = 0.0

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, slots=True)
class CallResultPart:
    """The result of a function call: the only part of its item, whose role is "tool"."""

    call_id: str
    output: str

    def __repr__(self) -> str:
        return brief(self)


ItemPart = str | RecordedPart | SpokenPart | FunctionCall | CallResultPart


@dataclass(frozen=True, slots=True)
class Item:
    """One message of a conversation. A `str` among its parts is text. A function call and its
    result are separate items.

    `complete` is set by the server: false for an answer that was interrupted or is in progress.
    """

    role: str
    parts: tuple[ItemPart, ...]
    id: str = ""
    complete: bool = True

    def __repr__(self) -> str:
        return brief(self)

    @property
    def text(self) -> str:
        """The written or spoken text of the item."""
        return "".join(
            part.transcript if isinstance(part, SpokenPart) else part
            for part in self.parts
            if isinstance(part, str | SpokenPart)
        )


@dataclass(frozen=True, slots=True)
class HeldSettings:
    """The current settings; see `ConversationOptions`.

    In events, recordings among `options` are empty bytes.
    """

    instructions: str = ""
    spoken: bool = True
    voice: str = ""
    sampling: Mapping[str, SamplingRequest] = field(default_factory=dict)
    turns: VoiceTurns | TimedTurns | None = None
    transcripts: TranscriptOptions | None = None
    options: Mapping[str, str | float | bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConversationReply:
    """A response and its state. `items`, and `usage` or `error`, are set when it has ended.

    `reason` is why it ended early.
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
        """The text of all items."""
        return "".join(item.text for item in self.items)


@dataclass(frozen=True, slots=True)
class ConversationOpened:
    """The conversation is open. `sample_rate_hz` is that of answers, 0 without audio.

    It is emitted again when the server was lost and another one continues. An answer in progress
    then ends as "failed" with what was received of it, and unprocessed commands are sent again.
    """

    model: str
    sample_rate_hz: int
    voices: tuple[str, ...]
    settings: HeldSettings


@dataclass(frozen=True, slots=True)
class SettingsUpdated:
    """The settings were changed."""

    settings: HeldSettings


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """A command was rejected. The conversation continues. `reference` is the caller's own."""

    error: AntiphonError
    reference: str = ""


@dataclass(frozen=True, slots=True)
class AudioAccepted:
    """The buffered audio became an item; `ItemCreated` follows."""

    item_id: str
    previous_item_id: str = ""


@dataclass(frozen=True, slots=True)
class AudioDropped:
    """The audio buffer was cleared."""


@dataclass(frozen=True, slots=True)
class SpeechBegan:
    """The user started speaking. The resulting item starts at `start_s` of all audio sent."""

    item_id: str
    start_s: float


@dataclass(frozen=True, slots=True)
class SpeechEnded:
    """The user's turn ended at `end_s` of all audio sent; `AudioAccepted` follows."""

    item_id: str
    end_s: float


@dataclass(frozen=True, slots=True)
class SilencePassed:
    """The user did not speak for `idle_timeout_s`. The audio since then becomes the item."""

    item_id: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class ServerStopping:
    """The server is shutting down.

    The call ends with `Unavailable` when the current answer is complete, and after `within_s`
    seconds at the latest. A new call reaches another server.
    """

    within_s: float


@dataclass(frozen=True, slots=True)
class ItemCreated:
    """An item was added to the conversation. Items of responses have their own events."""

    item: Item
    previous_item_id: str = ""


@dataclass(frozen=True, slots=True)
class ItemFetched:
    """The requested item, with its recordings."""

    item: Item


@dataclass(frozen=True, slots=True)
class ItemRemoved:
    """The item was removed from the conversation."""

    item_id: str


@dataclass(frozen=True, slots=True)
class ItemCut:
    """The item was truncated to what the user heard."""

    item_id: str
    heard_s: float


@dataclass(frozen=True, slots=True)
class TranscriptDelta:
    """Next text of a recording's transcript; `index` is the recording's among the item's parts."""

    item_id: str
    text: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class TranscriptDone:
    """The complete transcript of a recording."""

    item_id: str
    text: str
    usage: Usage
    index: int = 0


@dataclass(frozen=True, slots=True)
class TranscriptLost:
    """The transcription of a recording failed."""

    item_id: str
    error: AntiphonError
    index: int = 0


@dataclass(frozen=True, slots=True)
class ResponseStarted:
    """A response was started."""

    response: ConversationReply


@dataclass(frozen=True, slots=True)
class ResponseItemStarted:
    """An item of a response was added, without content yet."""

    response_id: str
    item_id: str
    index: int = 0
    previous_item_id: str = ""


@dataclass(frozen=True, slots=True)
class ResponseTextDelta:
    """Next text, in whole characters. The text of a spoken message may be ahead of its audio."""

    response_id: str
    item_id: str
    text: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class ResponseAudioDelta:
    """Next audio: 16-bit little-endian mono samples at the conversation's `sample_rate_hz`."""

    response_id: str
    item_id: str
    pcm16: bytes
    index: int = 0

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, slots=True)
class ResponseFunctionCallDelta:
    """Next part of a call's `arguments`.

    The call is valid once `ResponseFunctionCall` delivers it whole. If it proves invalid or is
    cancelled before, its item is removed (`ItemRemoved`).
    """

    response_id: str
    item_id: str
    call_id: str
    name: str
    arguments: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class ResponseFunctionCall:
    """A complete function call. Return its result with `answer_call`, then request a response."""

    response_id: str
    item_id: str
    call: FunctionCall
    index: int = 0


@dataclass(frozen=True, slots=True)
class ResponseItemDone:
    """An item of a response is complete."""

    response_id: str
    item: Item
    index: int = 0


@dataclass(frozen=True, slots=True)
class ResponseDone:
    """A response has ended with its `status`. No further event of it follows."""

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
    """The state with which another gateway can continue the conversation; replaces the previous
    one.

    The client resumes by itself. `token` is empty if the conversation cannot be resumed now. It
    covers the client's first `commands` messages. The audio of the first `audio_commands` is part
    of an item or was dropped.
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
    """Insert an item after another one: `ItemCreated`.

    An `after` of None appends, "root" inserts first. An item without an id gets one.
    """

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
    """Answer the conversation, or `given` instead: items, and ids of the conversation's items.

    Settings default to the conversation's. A response that is `out_of_band` adds no item to the
    conversation. `metadata` is returned with the response.
    """

    settings: HeldSettings | None = None
    out_of_band: bool = False
    given: tuple[Item | str, ...] | None = None
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class CancelResponse:
    """Cancel a response (empty: the one that answers the conversation): `ResponseDone`."""

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
