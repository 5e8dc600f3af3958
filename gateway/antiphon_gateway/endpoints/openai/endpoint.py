"""Defines the interface of an HTTP endpoint. An endpoint has a path, a function that converts a
body to an order, and a function that converts events to an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import msgspec

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError
from antiphon.values.options import Option
from antiphon.values.segment import Delivery
from antiphon_gateway.endpoints.http.body import TakesBody
from antiphon_gateway.endpoints.http.fields import IgnoredFields, Unsupported
from antiphon_gateway.endpoints.http.form_body import FormBody, decode_form
from antiphon_gateway.endpoints.http.json_body import WholeBody
from antiphon_gateway.endpoints.openai.audio import AnswerEvent
from antiphon_gateway.endpoints.openai.spoken import SpokenAnswers
from antiphon_gateway.media.encoding import AudioEncoding
from antiphon_gateway.orders.order import Order

JSON, EVENTS = "application/json", "text/event-stream"


@dataclass(frozen=True, slots=True)
class EndpointMessages:
    """An endpoint's messages, from which its documentation is generated.

    They consist of the body's type and media type, and a mapping from media types to answers. If an
    answer has no schema, it is None. `example` contains the fields of a request. In the example,
    `MODEL` is a placeholder for the name of the served model, and a form value that starts with `@`
    is a file name.
    """

    summary: str
    body: type[msgspec.Struct]
    answers: Mapping[str, type[msgspec.Struct] | None]
    body_type: str = JSON
    example: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The context of a request, which is everything except for the body.

    `answer_id` is unique. `delivery` is the deployment's delivery for each edge. `sampling_stages`
    contains the `stages` that have their own sampling settings, except for the stage that reads the
    messages. `voices` and `options` are those of the model. `spoken` contains the text of earlier
    answers. `max_choices` limits the number of answers to an order. `transcribe_instruction` is the
    instruction that asks the model for a transcript. `ignored` collects unknown fields.
    """

    answer_id: str
    delivery: Mapping[str, Delivery]
    sampling_stages: tuple[str, ...]
    stages: tuple[str, ...]
    voices: tuple[str, ...]
    spoken: SpokenAnswers
    max_choices: int
    transcribe_instruction: str
    options: tuple[Option, ...]
    ignored: IgnoredFields


class Answer(Protocol):
    """Converts a segment's events to response data, from `SegmentStarted` to `SegmentFinished`. If
    an order has several choices, it receives the events of all of them.

    Audio is passed in its `encoding`. If that is None, audio is left out. A `streamed` answer
    starts with the first event, and the data for each event is sent immediately. Other answers are
    sent once they are complete.
    """

    @property
    def streamed(self) -> bool:
        """Whether the answer is sent as it is generated."""
        ...

    @property
    def content_type(self) -> str:
        """The content type of the answer."""
        ...

    @property
    def encoding(self) -> AudioEncoding | None:
        """The encoding in which the answer needs the audio."""
        ...

    def add(self, event: AnswerEvent, choice: int = 0) -> bytes:
        """Return the data to send for an event, or b"" if there is nothing to send yet."""
        ...

    def fail(self, error: AntiphonError) -> bytes | None:
        """Return the end of a streamed answer that fails after it has started.

        Returns None if the format has no way to represent an error. In that case, the connection is
        cut, which tells the client that the answer is incomplete.
        """
        ...


class Receiving(TakesBody, Protocol):
    """A request body that is being received."""

    def read(self, visit: RequestContext) -> tuple[Order, Answer]:
        """Parse the complete body. Raises `AntiphonError` if it is rejected."""
        ...


class HttpEndpoint(Protocol):
    """An endpoint that accepts POST requests to `path`. It is described in the OpenAPI document by
    its `messages`.
    """

    @property
    def path(self) -> str:
        """The path of the endpoint."""
        ...

    @property
    def messages(self) -> EndpointMessages | None:
        """The messages that the endpoint reads and writes."""
        ...

    def receive(self, content_type: bytes, config: GatewayConfig) -> Receiving:
        """Start receiving a request. Raises `InvalidArgument` if the content type isn't
        accepted.
        """
        ...


@dataclass(frozen=True, slots=True)
class JsonEndpoint:
    """An endpoint whose body is a single JSON message, regardless of its content type."""

    path: str
    read: Callable[[bytes, RequestContext], tuple[Order, Answer]]
    messages: EndpointMessages | None = None

    def receive(self, content_type: bytes, config: GatewayConfig) -> Receiving:
        """Start receiving a request."""
        return _ReceivingWhole(self, config)


Form = TypeVar("Form", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class FormEndpoint(Generic[Form]):
    """An endpoint whose body is a multipart form, which is converted to `kind`. `unsupported`
    contains known fields that `kind` doesn't have.
    """

    path: str
    kind: type[Form]
    read: Callable[[Form, RequestContext], tuple[Order, Answer]]
    messages: EndpointMessages | None = None
    unsupported: Mapping[str, Unsupported] = field(default_factory=dict)

    def receive(self, content_type: bytes, config: GatewayConfig) -> Receiving:
        """Start receiving a request. Raises `InvalidArgument` if it doesn't contain a form."""
        return _ReceivingForm(self, content_type, config)


class _ReceivingWhole(WholeBody):
    def __init__(self, endpoint: JsonEndpoint, config: GatewayConfig) -> None:
        super().__init__(config.limits.max_body_values)
        self._endpoint = endpoint

    def read(self, visit: RequestContext) -> tuple[Order, Answer]:
        return self._endpoint.read(self.whole(), visit)


class _ReceivingForm(FormBody, Generic[Form]):
    def __init__(
        self, endpoint: FormEndpoint[Form], content_type: bytes, config: GatewayConfig
    ) -> None:
        super().__init__(content_type, config)
        self._endpoint = endpoint

    def read(self, visit: RequestContext) -> tuple[Order, Answer]:
        endpoint = self._endpoint
        form = decode_form(self.values(), endpoint.kind, endpoint.unsupported, visit.ignored)
        return endpoint.read(form, visit)
