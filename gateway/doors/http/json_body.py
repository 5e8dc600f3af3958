"""A JSON body to a struct, and the errors that name its fields as the client wrote them."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from antiphon.errors import InvalidArgument

_PATH = re.compile(r" - at `(?:key` in `)?\$\.?(?P<path>.*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>.*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>.*)`$")

Body = TypeVar("Body")


def decode_body(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """What the body says. Raises `InvalidArgument` with the field that is wrong."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text = str(error)
        found = _PATH.search(text)
        path = found["path"] if found else ""
        text = _PATH.sub("", text)
        inner = _UNKNOWN.search(text) or _MISSING.search(text)
        field = ".".join(part for part in (path, inner["name"] if inner else "") if part)
        raise InvalidArgument(f"{field}: {text}" if field else text, field=field) from error
    except RecursionError as error:
        raise InvalidArgument("the body is nested too deeply; leave such values out") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}") from error


def invalid(field: str, why: str) -> InvalidArgument:
    """The error for a wrong field of a request."""
    return InvalidArgument(f"{field}: {why}", field=field)
