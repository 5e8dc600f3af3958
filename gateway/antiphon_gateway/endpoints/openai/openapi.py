"""The OpenAPI document of the HTTP endpoints. It is generated from the messages that they read and
write.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from antiphon.version import VERSION
from antiphon_gateway.endpoints.http.errors import ErrorAnswer
from antiphon_gateway.endpoints.http.fields import UnknownFields
from antiphon_gateway.endpoints.http.reference_page import (
    HEADERS,
    EventReference,
    reference_page,
)
from antiphon_gateway.endpoints.http.stage_sampling import body_type
from antiphon_gateway.endpoints.openai.endpoint import JSON, EndpointMessages, HttpEndpoint
from antiphon_gateway.endpoints.openai.listings import ModelCard, ModelList, VersionCard, VoiceList
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.health_report import HealthReport
from antiphon_gateway.outputs import OUTPUTS

REFERENCE = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class _Listing:
    """A GET request."""

    path: str
    summary: str
    answers: Mapping[str, type[msgspec.Struct] | None]
    # The query parameters and their allowed values. All parameters are optional. If no values are
    # listed, any value is allowed.
    query: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    in_path: tuple[str, ...] = ()


_OUTPUT = {"output": tuple(sorted(OUTPUTS))}
LISTINGS = (
    _Listing("/v1/models", "Returns the served model.", {JSON: ModelList}),
    _Listing(
        "/v1/models/{name}",
        "Returns the served model with this name.",
        {JSON: ModelCard},
        {},
        ("name",),
    ),
    _Listing(
        "/v1/audio/voices", "Returns the voices of the model.", {JSON: VoiceList}, {"model": ()}
    ),
    _Listing("/version", "Returns the version of antiphon.", {JSON: VersionCard}),
    _Listing(
        "/health",
        "Returns whether all outputs are available, and if not, the reason.",
        {JSON: HealthReport},
        _OUTPUT,
    ),
    _Listing("/metrics", "Returns metrics in the Prometheus format.", {"text/plain": None}),
)


_UNKNOWN: Mapping[UnknownFields, str] = {
    "ignore": (
        "Request fields that are not listed here are ignored, and listed in the response header "
        "`x-antiphon-ignored`. Fields of OpenAI's or vLLM's API that would change the answer "
        "return status 400 instead."
    ),
    "reject": (
        "Request fields that are not listed here return status 400, unless their value is null "
        "or empty."
    ),
}


class OpenApi:
    """The OpenAPI document for a list of endpoints. It is generated on request."""

    def __init__(self, endpoints: Iterable[HttpEndpoint], unknown_fields: UnknownFields) -> None:
        self._endpoints = {
            each.path: each.messages for each in endpoints if each.messages is not None
        }
        self._unknown_fields = unknown_fields
        self._made_for: tuple[str, ...] | None = None
        self._made = b""

    def document(self, sampling_stages: tuple[str, ...]) -> bytes:
        """Return the document as JSON. Bodies contain a field for every stage that samples."""
        if self._made_for != sampling_stages:
            self._made = _document(self._endpoints, sampling_stages, self._unknown_fields)
            self._made_for = sampling_stages
        return self._made


def document_routes(
    endpoints: Iterable[HttpEndpoint],
    fleet: Fleet,
    unknown_fields: UnknownFields,
    event_reference: Callable[[], Awaitable[EventReference]],
) -> list[BaseRoute]:
    """Return the routes for GET requests for the document and for a page that shows both the
    document and the realtime events.
    """
    open_api = OpenApi(endpoints, unknown_fields)

    def document() -> bytes:
        told = [stage for stage in fleet if stage.told is not None]
        return open_api.document(fleet.accepted().sampling_fields if told else ())

    async def openapi(_: Request) -> Response:
        return Response(document(), media_type="application/json")

    async def docs(request: Request) -> Response:
        path = request.scope["raw_path"]
        if slashes := len(path) - len(path.rstrip(b"/")):
            # The script of the page is relative to the page, as there may be a prefix.
            return RedirectResponse("../" * slashes + "docs")
        page = reference_page(document(), await event_reference())
        return Response(page, 200, HEADERS, media_type="text/html")

    return [Route("/openapi.json", openapi), Route("/docs", docs)]


def _document(
    endpoints: Mapping[str, EndpointMessages],
    sampling_stages: tuple[str, ...],
    unknown_fields: UnknownFields,
) -> bytes:
    bodies = {path: _body(endpoint, sampling_stages) for path, endpoint in endpoints.items()}
    written = [each for endpoint in endpoints.values() for each in endpoint.answers.values()]
    written += [each for listing in LISTINGS for each in listing.answers.values()]
    kinds = [*bodies.values(), ErrorAnswer, *filter(None, written)]
    _, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    for kind in components.values():
        _send_files_as_they_are(kind)
        if unknown_fields == "ignore" and kind.get("additionalProperties") is False:
            del kind["additionalProperties"]
    paths: dict[str, Any] = {}
    for path, endpoint in endpoints.items():
        content: dict[str, Any] = {"schema": _schema(bodies[path])}
        if endpoint.example:
            content["example"] = endpoint.example
        body = {"required": True, "content": {endpoint.body_type: content}}
        operation = _operation(path, endpoint.summary, endpoint.answers)
        paths[path] = {"post": {**operation, "requestBody": body}}
    for listing in LISTINGS:
        operation = _operation(listing.path, listing.summary, listing.answers)
        operation["parameters"] = [
            *(_parameter(name, "path") for name in listing.in_path),
            *(_parameter(name, "query", choices) for name, choices in listing.query.items()),
        ]
        paths[listing.path] = {"get": operation}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "antiphon",
                "version": VERSION,
                "description": _UNKNOWN[unknown_fields],
            },
            "paths": paths,
            "components": {"schemas": components},
        }
    )


def _body(endpoint: EndpointMessages, sampling_stages: tuple[str, ...]) -> type[msgspec.Struct]:
    """Return the type of the body. Unlike JSON bodies, forms have no fields for stages."""
    return (
        body_type(endpoint.body, sampling_stages) if endpoint.body_type == JSON else endpoint.body
    )


def _send_files_as_they_are(kind: dict[str, Any]) -> None:
    """Replace msgspec's base64 encoding for bytes, because a file in a form isn't encoded."""
    for described in kind.get("properties", {}).values():
        if described.get("format") == "binary":
            described.pop("contentEncoding", None)


def _operation(
    path: str, summary: str, answers: Mapping[str, type[msgspec.Struct] | None]
) -> dict[str, Any]:
    content = {
        media_type: {} if kind is None else {"schema": _schema(kind)}
        for media_type, kind in answers.items()
    }
    error: Mapping[str, Any] = {JSON: {"schema": _schema(ErrorAnswer)}}
    if path == "/health":
        error = content
    return {
        "summary": summary,
        "operationId": path.strip("/").replace("/", "_").replace("{", "").replace("}", ""),
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "default": {"description": "The cause of the error.", "content": error},
        },
    }


def _schema(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": REFERENCE.format(name=kind.__name__)}


def _parameter(name: str, place: str, choices: tuple[str, ...] = ()) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if place == "path":
        schema["minLength"] = 1
    if choices:
        schema["enum"] = choices
    return {"name": name, "in": place, "required": place == "path", "schema": schema}
