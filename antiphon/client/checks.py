"""What a caller hands to the client, checked where it enters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TypeVar

from antiphon.errors import InvalidArgument, told

T = TypeVar("T")

MAX_TIMEOUT_S = 1e9
"""Thirty years; gRPC cannot count much longer ones."""
MAX_MESSAGE_BYTES = 256 << 20
"""Room for an hour of audio that is delivered whole."""


def of_type(field: str, value: object, kind: type[T]) -> T:
    """The value. Raises `InvalidArgument` when it is of another type."""
    if not isinstance(value, kind):
        raise wrong_type(field, kind.__name__, value)
    return value


def listed(field: str, values: Iterable[T], kind: type[T]) -> tuple[T, ...]:
    """The values. Raises `InvalidArgument` unless they are several things of that type.

    Text is refused: its letters are hardly what was meant.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise wrong_type(field, f"a sequence of {kind.__name__}", values)
    items = tuple(values)
    for index, each in enumerate(items):
        of_type(f"{field}[{index}]", each, kind)
    return items


def named(field: str, values: Mapping[str, object] | None) -> dict[str, object]:
    """Values by name; none for None. Raises `InvalidArgument` unless each has text for a name."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise wrong_type(field, "a mapping by name", values)
    return {unicode_text(field, name): value for name, value in values.items()}


def unicode_text(field: str, value: object) -> str:
    """The text. Raises `InvalidArgument` for what is none, or cannot be encoded."""
    text = of_type(field, value, str)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{field}: is no Unicode text: {error.reason}", field=field) from None
    return text


def file_bytes(field: str, file: bytes | str | PathLike[str]) -> bytes:
    """The bytes, or those of the file at a path.

    Raises `InvalidArgument` for one that cannot be read, or is too large to be sent.
    """
    if isinstance(file, bytes):
        return file
    if not isinstance(file, str | PathLike):
        raise wrong_type(field, "bytes or a path", file)
    try:
        path = Path(file)
        size = path.stat().st_size
        if size <= MAX_MESSAGE_BYTES:
            return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{field}: {told(file)}: {error.strerror}", field=field) from error
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{field}: {told(file)} is no path: {error}", field=field) from error
    raise InvalidArgument(
        f"{field}: {told(file)} has {size} bytes; at most {MAX_MESSAGE_BYTES} can be sent",
        field=field,
    )


def timeout(value: object, field: str = "timeout_s") -> float:
    """Seconds. Raises `InvalidArgument` for what is no finite number above 0."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong_type(field, "a number of seconds", value)
    # Compared before it is converted: an integer may be larger than any float.
    if not 0 < value <= MAX_TIMEOUT_S:
        raise InvalidArgument(
            f"{field}: must be above 0 and at most {MAX_TIMEOUT_S:g}, is {told(value)}",
            field=field,
        )
    return float(value)


def idle_timeout(value: object) -> float | None:
    """Seconds, or None. Raises `InvalidArgument` as `timeout` does."""
    return None if value is None else timeout(value, "idle_timeout_s")


def number_between(field: str, value: object, least: float, most: float) -> float:
    """The number. Raises `InvalidArgument` for what is none, or lies outside."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong_type(field, "a number", value)
    if not least <= value <= most:
        raise InvalidArgument(
            f"{field}: must be from {least:g} to {most:g}, is {told(value)}", field=field
        )
    return float(value)


def address(value: object) -> str:
    """The target of a channel. Raises `InvalidArgument` for what is none."""
    text = unicode_text("address", value)
    if not text.strip():
        raise InvalidArgument("address: is empty; give HOST:PORT", field="address")
    return text


def wrong_type(field: str, wanted: str, value: object) -> InvalidArgument:
    """The error for a value of another type."""
    kind = type(value).__name__
    return InvalidArgument(f"{field}: must be {wanted}, is {kind}: {told(value)}", field=field)
