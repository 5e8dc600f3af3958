"""What an HTTP endpoint is: a path, and how a body becomes an order and events become an answer."""

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
    """The messages of an endpoint for its description: the type of its body, its answers by media
    type (None without a schema), and the media type of the body."""

    summary: str
    body: type[msgspec.Struct]
    answers: Mapping[str, type[msgspec.Struct] | None]
    body_type: str = JSON


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The context of a request for an endpoint, besides the body.

    `answer_id` is unique. `delivery` is the deployment's, by edge. `sampling_stages` are the
    `stages` with their own sampling, except the one that reads the messages. `voices` and `options`
    are those of the model; `spoken` has the texts of earlier answers. `max_choices` limits the
    answers to one order, and `transcribe_instruction` asks for a transcript of a recording.
    `ignored` collects unknown fields.
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


class Receiving(TakesBody, Protocol):
    """The body of one request as it comes."""

    def read(self, visit: RequestContext) -> tuple[Order, Answer]:
        """What it asks for, once it is whole. Raises `AntiphonError` for one that will not do."""
        ...


class HttpEndpoint(Protocol):
    """One row: POST to `path`; `messages` are for the OpenAPI document."""

    @property
    def path(self) -> str:
        """The path of the endpoint."""
        ...

    @property
    def messages(self) -> EndpointMessages | None:
        """What it reads and writes."""
        ...

    def receive(self, content_type: bytes, config: GatewayConfig) -> Receiving:
        """Begin with a request. Raises `InvalidArgument` for a type that is not taken."""
        ...


@dataclass(frozen=True, slots=True)
class JsonEndpoint:
    """An endpoint whose body is one JSON message, regardless of its content type."""

    path: str
    read: Callable[[bytes, RequestContext], tuple[Order, Answer]]
    messages: EndpointMessages | None = None

    def receive(self, content_type: bytes, config: GatewayConfig) -> Receiving:
        """Begin with a request."""
        return _ReceivingWhole(self, config)


Form = TypeVar("Form", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class FormEndpoint(Generic[Form]):
    """An endpoint whose body is a multipart form, read as a `kind`; `unsupported` are fields that
    the kind does not have, and that are known."""

    path: str
    kind: type[Form]
    read: Callable[[Form, RequestContext], tuple[Order, Answer]]
    messages: EndpointMessages | None = None
    unsupported: Mapping[str, Unsupported] = field(default_factory=dict)

    def receive(self, content_type: bytes, config: GatewayConfig) -> Receiving:
        """Begin with a request. Raises `InvalidArgument` when it has no form."""
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
