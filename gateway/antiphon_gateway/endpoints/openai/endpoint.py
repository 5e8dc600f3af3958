"""Defines an HTTP endpoint. It consists of a path and the functions that convert a body to an order
and events to an answer.
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
    """The messages of an endpoint, which are used for its description.

    They are the type and the media type of the body, and the answers by media type. An answer
    without a schema is None.
    """

    summary: str
    body: type[msgspec.Struct]
    answers: Mapping[str, type[msgspec.Struct] | None]
    body_type: str = JSON


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The context of a request for an endpoint. It contains everything except for the body.

    `answer_id` is unique. `delivery` is the deployment's delivery, by edge. `sampling_stages` are
    those of the `stages` that have separate sampling settings, except for the stage that reads the
    messages. `voices` and `options` are those of the model. `spoken` contains the texts of earlier
    answers. `max_choices` limits the number of answers to one order, and `transcribe_instruction`
    is the instruction that requests a transcript of a recording. `ignored` collects unknown fields.
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
    """Writes the events of one segment, beginning with `Started` and ending with `Finished`. If an
    order has several choices, it writes the events of each of them.

    Audio is passed in its `encoding`. If there is no encoding, audio is left out. A `streamed`
    answer begins with the first event, and the output for each event is sent immediately. All other
    answers are sent when they are complete.
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
        """Return what to send for an event, or b"" if there is nothing to send yet."""
        ...

    def fail(self, error: AntiphonError) -> bytes | None:
        """Return the end of a streamed answer that fails after it has begun.

        The result is None if the format cannot represent an error. In this case, the connection is
        cut, so that the client notices that the answer is incomplete.
        """
        ...


class Receiving(TakesBody, Protocol):
    """The body of a request while it is being received."""

    def read(self, visit: RequestContext) -> tuple[Order, Answer]:
        """Return what the complete body requests. Raises `AntiphonError` if it is not
        acceptable.
        """
        ...


class HttpEndpoint(Protocol):
    """One row of the list of endpoints, which accepts POST requests for `path`. `messages` are used
    for the OpenAPI document.
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
        """Start to receive a request. Raises `InvalidArgument` if the content type is not
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
        """Start to receive a request."""
        return _ReceivingWhole(self, config)


Form = TypeVar("Form", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class FormEndpoint(Generic[Form]):
    """An endpoint whose body is a multipart form that is converted to `kind`. `unsupported`
    contains fields that are known but not part of `kind`.
    """

    path: str
    kind: type[Form]
    read: Callable[[Form, RequestContext], tuple[Order, Answer]]
    messages: EndpointMessages | None = None
    unsupported: Mapping[str, Unsupported] = field(default_factory=dict)

    def receive(self, content_type: bytes, config: GatewayConfig) -> Receiving:
        """Start to receive a request. Raises `InvalidArgument` if it does not contain a form."""
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
