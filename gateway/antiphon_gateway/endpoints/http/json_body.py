"""Decodes JSON bodies. Errors contain the field names that the client used."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from antiphon.deployment.allowed_values import with_allowed_values
from antiphon.errors import InvalidArgument
from antiphon_gateway.endpoints.http.errors import TooManyValues

_PATH = re.compile(r" - at `(?:key` in `)?\$\.?(?P<path>.*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>.*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>.*)`$")

# Every JSON value either follows one of these characters or is the whole body. Values are counted
# before anything is decoded, for two reasons. A value of two bytes can take up a hundred bytes of
# memory, and decoding blocks the event loop.
_BEFORE_VALUES = (b",", b"[", b"{")

# An escape sequence for one half of a surrogate pair whose other half is missing.
_HALF = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Body = TypeVar("Body")


def count_values(data: bytes) -> int:
    """Return the maximum number of values that a piece of JSON may contain."""
    return sum(map(data.count, _BEFORE_VALUES))


def check_values(values: int, most: int, what: str) -> None:
    """Raise `TooManyValues` if the count exceeds `gateway.limits.max_body_values`."""
    if values > most:
        raise TooManyValues(
            f"the {what} has more than {most} values (gateway.limits.max_body_values); commas "
            "and brackets are counted, even in strings"
        )


class WholeBody:
    """A body that is collected until it is complete. There is a limit on the number of values in
    it.
    """

    def __init__(self, most_values: int) -> None:
        self._most_values = most_values
        self._values = 0
        self._parts: list[bytes] = []

    def add(self, piece: bytes) -> None:
        """Add the next piece. Raises `TooManyValues` if there are too many values."""
        self._values += count_values(piece)
        check_values(self._values, self._most_values, "body")
        self._parts.append(piece)

    def whole(self) -> bytes:
        """Return the complete body. This can be called only once."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


def decode_body(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """Decode the body. A byte order mark at the beginning is skipped.

    If a field is invalid, `InvalidArgument` is raised with that field.
    """
    try:
        return decoder.decode(body.removeprefix(_BYTE_ORDER_MARK))
    except msgspec.ValidationError as error:
        raise field_error(error, decoder.type) from error
    except RecursionError as error:
        raise InvalidArgument("the body is nested too deeply; reduce the nesting") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        half = _HALF.search(body)
        remedy = (
            f"; {half[0].decode()} is only half of a surrogate pair: send both halves, or remove it"
            if half
            else ""
        )
        raise InvalidArgument(f"the body is not JSON: {error}{remedy}") from error


def field_error(error: msgspec.ValidationError, kind: Any) -> InvalidArgument:
    """Convert a validation error of msgspec that occurred while decoding this type."""
    text = str(error)
    found = _PATH.search(text)
    path = found["path"] if found else ""
    text = with_allowed_values(_PATH.sub("", text), kind, path)
    inner = _UNKNOWN.search(text) or _MISSING.search(text)
    field = ".".join(part for part in (path, inner["name"] if inner else "") if part)
    return InvalidArgument(f"{field}: {text}" if field else text, field=field)


def invalid(field: str, why: str) -> InvalidArgument:
    """Return the error for an invalid request field."""
    return InvalidArgument(f"{field}: {why}", field=field)
