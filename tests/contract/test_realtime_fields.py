"""The fields of OpenAI's realtime events, by the types of its library."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import typing_extensions
from openai.types.beta import realtime as beta
from openai.types.realtime.realtime_client_event_param import RealtimeClientEventParam

from antiphon.errors import InvalidArgument
from antiphon_gateway.endpoints.http.fields import IgnoredFields
from antiphon_gateway.endpoints.realtime.client_events import read_event


def structs(kind: Any) -> Iterator[tuple[Any, str]]:
    """The dictionaries in an annotation of OpenAI's, and "[]" for those in a list."""
    required = (typing.Required, typing.NotRequired, typing.Annotated)
    while get_origin(kind) in (*required, typing_extensions.Required):
        kind = get_args(kind)[0]
    if get_origin(kind) in (typing.Union, types.UnionType):
        for each in get_args(kind):
            yield from structs(each)
    elif typing_extensions.is_typeddict(kind):
        yield kind, ""
    elif get_origin(kind) is not dict:
        for each in get_args(kind):
            yield from ((struct, "[]") for struct, _ in structs(each))


def examples(kind: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Objects of one field each, which together have all fields of OpenAI's type."""
    for struct, _ in structs(kind):
        for name, inner in get_type_hints(struct, include_extras=True).items():
            if name in ("tools", "metadata", "variables"):
                continue  # lists of the client's own objects
            yield {name: None if name == "type" else 5}
            many = any(suffix for _, suffix in structs(inner))
            for each in examples(inner, depth + 1) if depth < 5 else ():
                yield {name: [each] if many else each}


def test_every_field_of_openais_events_is_known() -> None:
    """Of today's and of the beta's: none is reported as made up."""
    unknown: set[str] = set()
    seen = 0
    for event in (*get_args(RealtimeClientEventParam), *get_args(beta.RealtimeClientEventParam)):
        hints = get_type_hints(event, include_extras=True)
        (literal,) = get_args(hints["type"])
        (kind,) = get_args(literal)
        if kind == "transcription_session.update":
            continue  # refused as a whole
        for example in examples(event):
            ignored = IgnoredFields("ignore")
            with suppress(InvalidArgument):  # of a value; the fields before it are reported
                read_event(msgspec.json.encode({**example, "type": kind}).decode(), ignored)
            unknown |= set(ignored)
            seen += 1
    assert seen > 100
    assert not unknown
