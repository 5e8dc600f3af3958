"""What an HTTP door is: a path, and how a body becomes an order and events become an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from antiphon.errors import AntiphonError
from gateway.calls.order import Order
from gateway.doors.http.audio import AnswerEvent
from gateway.doors.http.openapi import DoorMessages
from gateway.doors.http.spoken import SpokenAnswers
from gateway.media.encoding import AudioEncoding


@dataclass(frozen=True, slots=True)
class Visit:
    """What a door may need to know besides a request's body.

    `answer_id` is never the same. `sampling_stages` are those that take sampling of their own,
    without the one that reads the messages; `voices` those that the model has; `spoken` what
    earlier answers said; `max_choices` bounds the answers to one order.
    """

    answer_id: str
    sampling_stages: tuple[str, ...]
    voices: tuple[str, ...]
    spoken: SpokenAnswers
    max_choices: int


class Answer(Protocol):
    """Writes the events of one segment, `Started` first and `Finished` last, or those of each
    choice of an order for several.

    Audio comes in its `encoding`; without one it is left out. A `streamed` answer begins with
    the first event, and what each event adds is sent at once; any other is sent when it is whole.
    """

    @property
    def streamed(self) -> bool:
        """Whether it is sent as it comes."""
        ...

    @property
    def content_type(self) -> str:
        """The type of what it writes."""
        ...

    @property
    def encoding(self) -> AudioEncoding | None:
        """How it wants the audio."""
        ...

    def add(self, event: AnswerEvent, choice: int = 0) -> bytes:
        """What to send for an event; b"" when there is nothing yet."""
        ...

    def fail(self, error: AntiphonError) -> bytes | None:
        """The end of a streamed answer that fails after it has begun; None: the format has no
        place for it, and the connection is cut, so that the client sees that more was to come."""
        ...


@dataclass(frozen=True, slots=True)
class HttpDoor:
    """One row: POST to `path`. `read` raises `AntiphonError` for a body that will not do;
    `messages` are for the OpenAPI document."""

    path: str
    read: Callable[[bytes, Visit], tuple[Order, Answer]]
    messages: DoorMessages | None = None
