"""The commands, events, items and settings of conversations, independent of the protocol.

The SDK exposes these classes. The gateway executes the commands and emits the events. Its endpoints
convert them to and from their protocols. Times are in seconds. Audio is 16-bit little-endian mono.
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
    """Turn detection based on voice activity.

    Audio counts as speech if its speech probability is at least `threshold`. A turn ends after
    `silence_s` seconds without speech. `silence_s` must be between 0.032 and 60. The turn includes
    the last `prefix_padding_s` seconds of audio before the speech. `prefix_padding_s` must be at
    most 10. If `creates_response` is true, each turn is answered. If `interrupts_response` is true,
    speech interrupts the current answer. If the user does not speak for `idle_timeout_s` seconds
    after an answer has been played, the model is asked to continue. `idle_timeout_s` must be
    between 0.1 and 120.
    """

    threshold: float = 0.5
    prefix_padding_s: float = 0.3
    silence_s: float = 0.5
    creates_response: bool = True
    interrupts_response: bool = True
    idle_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class TimedTurns:
    """Turns of a fixed duration. Every `answer_every_s` seconds of audio form a message, which is
    answered.

    `answer_every_s` must be at least 0.5. Turns that arrive during an answer are queued. All of
    them are answered in order.
    """

    answer_every_s: float


@dataclass(frozen=True, slots=True)
class TranscriptOptions:
    """Options for the transcription of the user's speech: its language (ISO 639-1) and a prompt
    that provides context.
    """

    language: str = ""
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class RecordedPart:
    """Speech by the user, as 16-bit little-endian mono samples at `rate_hz`, which must be between
    8,000 and 48,000 Hz.

    In events, `pcm16` is empty, except in `ItemFetched`. `audio_s` is the length of the audio in
    seconds. `transcript` is the text of the speech once it is known.
    """

    pcm16: bytes
    rate_hz: int = 24_000
    audio_s: float = 0.0
    transcript: str | None = None

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, slots=True)
class SpokenPart:
    """Speech by the assistant, as text, and the length of the audio in seconds."""

    transcript: str
    audio_s: float = 0.0

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, slots=True)
class CallResultPart:
    """The result of a function call. It is the only part of its item, which has the role "tool"."""

    call_id: str
    output: str

    def __repr__(self) -> str:
        return brief(self)


ItemPart = str | RecordedPart | SpokenPart | FunctionCall | CallResultPart


@dataclass(frozen=True, slots=True)
class Item:
    """A message in a conversation. A part that is a `str` is text. A function call and its result
    are separate items.

    `complete` is set by the server. It is false if the answer was interrupted or is still in
    progress.
    """

    role: str
    parts: tuple[ItemPart, ...]
    id: str = ""
    complete: bool = True

    def __repr__(self) -> str:
        return brief(self)

    @property
    def text(self) -> str:
        """The item's text, whether it was written or spoken."""
        return "".join(
            part.transcript if isinstance(part, SpokenPart) else part
            for part in self.parts
            if isinstance(part, str | SpokenPart)
        )


@dataclass(frozen=True, slots=True)
class HeldSettings:
    """The current settings, which are described in `ConversationOptions`.

    In events, a recording in `options` is represented by empty bytes.
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
    """A response and its status. `items` and either `usage` or `error` are set once the response
    has ended.

    If it ended early, `reason` states why.
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
    """The conversation is open. `sample_rate_hz` is the sample rate of the answers, or 0 if they
    have no audio.

    This event is emitted again if the server was lost and another one has taken over. An answer
    that was in progress then ends with the status "failed" and contains the part that was received.
    Unprocessed commands are sent again.
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
    """A command was rejected, and the conversation continues. `reference` is the value that the
    caller passed with the command.
    """

    error: AntiphonError
    reference: str = ""


@dataclass(frozen=True, slots=True)
class AudioAccepted:
    """The buffered audio became an item. `ItemCreated` follows."""

    item_id: str
    previous_item_id: str = ""


@dataclass(frozen=True, slots=True)
class AudioDropped:
    """The audio buffer was cleared."""


@dataclass(frozen=True, slots=True)
class SpeechBegan:
    """The user started to speak. The resulting item starts `start_s` seconds into the audio that
    the client has sent.
    """

    item_id: str
    start_s: float


@dataclass(frozen=True, slots=True)
class SpeechEnded:
    """The user's turn ended `end_s` seconds into the audio that the client has sent.
    `AudioAccepted` follows.
    """

    item_id: str
    end_s: float


@dataclass(frozen=True, slots=True)
class SilencePassed:
    """The user did not speak for `idle_timeout_s` seconds. The audio of this period becomes the
    item.
    """

    item_id: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class ServerStopping:
    """The server is shutting down.

    The call ends with `Unavailable` once the current answer is complete, or after `within_s`
    seconds at the latest. A new call reaches another server.
    """

    within_s: float


@dataclass(frozen=True, slots=True)
class ItemCreated:
    """An item was added to the conversation. Items that belong to responses have separate
    events.
    """

    item: Item
    previous_item_id: str = ""


@dataclass(frozen=True, slots=True)
class ItemFetched:
    """The requested item, including its recordings."""

    item: Item


@dataclass(frozen=True, slots=True)
class ItemRemoved:
    """The item was removed from the conversation."""

    item_id: str


@dataclass(frozen=True, slots=True)
class ItemCut:
    """The item was shortened to the part that the user has heard."""

    item_id: str
    heard_s: float


@dataclass(frozen=True, slots=True)
class TranscriptDelta:
    """The next piece of text in the transcript of a recording. `index` is the position of the
    recording among the parts of the item.
    """

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
    """An item was added to a response. It has no content yet."""

    response_id: str
    item_id: str
    index: int = 0
    previous_item_id: str = ""


@dataclass(frozen=True, slots=True)
class ResponseTextDelta:
    """The next piece of text, which never ends in the middle of a character. The text of a spoken
    message may arrive earlier than its audio.
    """

    response_id: str
    item_id: str
    text: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class ResponseAudioDelta:
    """The next piece of audio, as 16-bit little-endian mono samples at the conversation's
    `sample_rate_hz`.
    """

    response_id: str
    item_id: str
    pcm16: bytes
    index: int = 0

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, slots=True)
class ResponseFunctionCallDelta:
    """The next part of a function call's `arguments`.

    Wait for `ResponseFunctionCall`, which contains the complete call, before you act on it. If the
    call turns out to be invalid or is cancelled before that, its item is removed (`ItemRemoved`).
    """

    response_id: str
    item_id: str
    call_id: str
    name: str
    arguments: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class ResponseFunctionCall:
    """A complete function call. Send its result with `answer_call` and then request a response."""

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
    """A response has ended with the given `status`. No further events follow for it."""

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
    """The state from which another gateway can continue the conversation. It replaces the previous
    state.

    The client resumes the conversation automatically. `token` is empty if the conversation cannot
    be resumed at the moment. It covers the first `commands` messages of the client. The audio of
    the first `audio_commands` audio commands is already part of an item or was dropped.
    """

    token: bytes
    commands: int
    audio_commands: int


@dataclass(frozen=True, slots=True)
class ChangeSettings:
    """Use these settings from now on. The result is `SettingsUpdated`."""

    settings: HeldSettings


@dataclass(frozen=True, slots=True)
class AppendAudio:
    """Append audio to the input buffer. `rate_hz` is its sample rate."""

    pcm16: bytes
    rate_hz: int


@dataclass(frozen=True, slots=True)
class CommitAudio:
    """Turn the buffered audio into a user message. The result is `AudioAccepted` and
    `ItemCreated`.
    """


@dataclass(frozen=True, slots=True)
class ClearAudio:
    """Clear the audio buffer. The result is `AudioDropped`."""


@dataclass(frozen=True, slots=True)
class CreateItem:
    """Insert an item after another one. The result is `ItemCreated`.

    If `after` is None, the item is appended. If it is "root", the item is inserted at the
    beginning. If the item has no ID, it is assigned one.
    """

    item: Item
    after: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteItem:
    """Remove an item. The result is `ItemRemoved`."""

    item_id: str


@dataclass(frozen=True, slots=True)
class RetrieveItem:
    """Request an item, including its recordings. The result is `ItemFetched`."""

    item_id: str


@dataclass(frozen=True, slots=True)
class TruncateItem:
    """Keep only the first `heard_s` seconds of a spoken part of an item. The result is
    `ItemCut`.
    """

    item_id: str
    heard_s: float
    part: int = 0


@dataclass(frozen=True, slots=True)
class CreateResponse:
    """Respond to the conversation or, if `given` is set, to the items in it.

    Each element of `given` is an item or the ID of an item in the conversation. Settings default to
    those of the conversation. A response that is `out_of_band` adds no item to the conversation.
    `metadata` is returned with the response.
    """

    settings: HeldSettings | None = None
    out_of_band: bool = False
    given: tuple[Item | str, ...] | None = None
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class CancelResponse:
    """Cancel a response. The result is `ResponseDone`.

    If the ID is empty, the response to the conversation is cancelled.
    """

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
