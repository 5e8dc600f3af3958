"""What a conversation tells, in order, whatever the protocol."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from antiphon.chunk import Tensor
from antiphon.conversation import ToolCall
from antiphon.errors import AntiphonError
from antiphon.v1 import session_pb2
from antiphon_gateway.calls.events import SegmentUsage
from antiphon_gateway.conversations.items import ConversationItem
from antiphon_gateway.conversations.settings import ConversationSettings


class ResponseStatus(enum.Enum):
    """How far a response is, or how it ended."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    FAILED = "failed"


class EndReason(enum.Enum):
    """Why a response ended before it was complete."""

    MAX_OUTPUT_TOKENS = "max_output_tokens"
    CLIENT_CANCELLED = "client_cancelled"
    TURN_DETECTED = "turn_detected"


@dataclass(frozen=True, slots=True)
class Response:
    """A response as it stands. `items` are what it has said; an `error` is there if it failed.

    `reports` are what each stage says of it, by role, when it is over.
    """

    id: str
    settings: ConversationSettings
    in_conversation: bool
    metadata: Mapping[str, str] | None
    status: ResponseStatus = ResponseStatus.IN_PROGRESS
    reason: EndReason | None = None
    error: AntiphonError | None = None
    items: tuple[ConversationItem, ...] = ()
    usage: SegmentUsage | None = None
    reports: Mapping[str, session_pb2.SegmentReport] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConversationBegun:
    """The first event."""

    settings: ConversationSettings


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """What holds now."""

    settings: ConversationSettings


@dataclass(frozen=True, slots=True)
class CommandRefused:
    """Something was not done. `reference` is the client's own name of its command, if it gave one;
    None also for what nobody commanded, such as the answer to a turn that was heard."""

    error: AntiphonError
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class AudioCleared:
    """The input audio buffer is empty."""


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The user speaks. The audio of the item that this becomes begins at `start_s`, padding
    included, counted in the audio of the whole conversation."""

    item_id: str
    start_s: float


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The user's turn is over. Its audio ends at `end_s`, silence included."""

    item_id: str
    end_s: float


@dataclass(frozen=True, slots=True)
class SilenceTimedOut:
    """Nobody has spoken for the time that may pass; what was heard becomes the item."""

    item_id: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class AudioCommitted:
    """The input audio buffer has become an item."""

    item_id: str
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class ItemAdded:
    """A whole item is in the conversation. A response's item has events of its own."""

    item: ConversationItem
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class ItemRetrieved:
    """The item that was asked for."""

    item: ConversationItem


@dataclass(frozen=True, slots=True)
class ItemDeleted:
    """The item is in the conversation no more."""

    item_id: str


@dataclass(frozen=True, slots=True)
class ItemTruncated:
    """The item has no more than was heard."""

    item_id: str
    content_index: int
    end_s: float


@dataclass(frozen=True, slots=True)
class ResponseCreated:
    """A response is being made."""

    response: Response


@dataclass(frozen=True, slots=True)
class ResponseItemBegun:
    """The response's item is there, and empty. Out of band it is in no conversation."""

    response: Response
    index: int
    item: ConversationItem
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class ResponseText:
    """More text of an item; `spoken`: it is the transcript of audio, and may be ahead of that."""

    response_id: str
    index: int
    item_id: str
    text: str
    spoken: bool


@dataclass(frozen=True, slots=True)
class ResponseAudio:
    """More audio of an item: mono float32 samples."""

    response_id: str
    index: int
    item_id: str
    samples: Tensor


@dataclass(frozen=True, slots=True)
class ResponseCallText:
    """More of the arguments of an item that is a call; its item is deleted if it proves to be
    none."""

    response_id: str
    index: int
    item_id: str
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ResponseCall:
    """The whole call of an item that is one."""

    response_id: str
    index: int
    item_id: str
    call: ToolCall


@dataclass(frozen=True, slots=True)
class ResponseItemEnded:
    """Nothing more of the item follows; it may be incomplete."""

    response: Response
    index: int
    item: ConversationItem


@dataclass(frozen=True, slots=True)
class ResponseEnded:
    """The response is over, as its status says. Nothing more of it follows."""

    response: Response


@dataclass(frozen=True, slots=True)
class TranscriptText:
    """More of what the user said in an item's recording, as the model hears it."""

    item_id: str
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class TranscriptEnded:
    """All that the user said in an item's recording."""

    item_id: str
    index: int
    text: str
    usage: SegmentUsage


@dataclass(frozen=True, slots=True)
class TranscriptFailed:
    """What the user said in an item's recording will not be told."""

    item_id: str
    index: int
    error: AntiphonError


@dataclass(frozen=True, slots=True)
class GatewayStopping:
    """The gateway was told to stop: the conversation ends after what is being answered, or within
    so many seconds. The settings are those that hold."""

    within_s: float
    settings: ConversationSettings


@dataclass(frozen=True, slots=True)
class ConversationSaved:
    """What another gateway needs to go on, in place of what was told before; without a token it
    cannot.

    It has what came of so many of the client's `commands`. Of their audio, that of so many is an
    item, or was dropped.
    """

    token: bytes
    commands: int
    audio_commands: int


ResponseEvent = (
    ResponseCreated
    | ResponseItemBegun
    | ResponseText
    | ResponseAudio
    | ResponseCallText
    | ResponseCall
    | ResponseItemEnded
    | ResponseEnded
)
ConversationEvent = (
    ConversationBegun
    | SettingsChanged
    | CommandRefused
    | AudioCleared
    | SpeechStarted
    | SpeechStopped
    | SilenceTimedOut
    | AudioCommitted
    | ItemAdded
    | ItemRetrieved
    | ItemDeleted
    | ItemTruncated
    | TranscriptText
    | TranscriptEnded
    | TranscriptFailed
    | GatewayStopping
    | ConversationSaved
    | ResponseEvent
)
