"""Validates arguments that are passed to the SDK."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from antiphon.errors import InvalidArgument, told

T = TypeVar("T")

MAX_TIMEOUT_S = 1e9
"""The maximum timeout in seconds, which is about 30 years. gRPC doesn't support much longer
timeouts.
"""
MAX_MESSAGE_BYTES = 256 << 20
"""The maximum size of a message. It is large enough for an hour of audio."""

_SECURE_SCHEMES = frozenset({"https", "wss", "grpcs"})
_URL_SCHEMES = _SECURE_SCHEMES | {"http", "ws", "grpc"}
_GRPC_SCHEME = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds|google-c2p):(?!\d+$)")
"""Matches the prefix of a gRPC target, as in "dns:///name:1" or "ipv4:10.0.0.1:1,10.0.0.2:1"."""


def of_type(field: str, value: object, kind: type[T]) -> T:
    """Return the value unchanged. Raises `InvalidArgument` if it has a different type."""
    if not isinstance(value, kind):
        raise wrong_type(field, kind.__name__, value)
    return value


def listed(field: str, values: Iterable[T], kind: type[T]) -> tuple[T, ...]:
    """Return the values as a tuple. Raises `InvalidArgument` if they aren't a sequence of the given
    type.

    Strings are rejected, because the caller most likely didn't mean to pass a sequence of
    characters.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise wrong_type(field, f"a sequence of {kind.__name__}", values)
    items = tuple(values)
    for index, each in enumerate(items):
        of_type(f"{field}[{index}]", each, kind)
    return items


def named(field: str, values: Mapping[str, object] | None) -> dict[str, object]:
    """Return the mapping as a dictionary, which is empty if `values` is None.

    Raises `InvalidArgument` if a key is not a string.
    """
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise wrong_type(field, "a mapping whose keys are names", values)
    return {unicode_text(field, name): value for name, value in values.items()}


def unicode_text(field: str, value: object) -> str:
    """Return the text unchanged. Raises `InvalidArgument` if it isn't a string or if it contains
    lone surrogates.
    """
    text = of_type(field, value, str)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{field}: is not valid Unicode text: {error.reason}", field=field
        ) from None
    return text


def file_bytes(field: str, file: bytes | str | PathLike[str]) -> bytes:
    """Return the given bytes, or the content of the file at the given path.

    Raises `InvalidArgument` if the file can't be read or is too large to be sent.
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
        raise InvalidArgument(
            f"{field}: {told(file)} is not a valid path: {error}", field=field
        ) from error
    raise InvalidArgument(
        f"{field}: {told(file)} has {size} bytes; the maximum is {MAX_MESSAGE_BYTES}",
        field=field,
    )


def timeout(value: object, field: str = "timeout_s") -> float:
    """Return the timeout in seconds. Raises `InvalidArgument` if it is not a finite number greater
    than 0.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong_type(field, "a number of seconds", value)
    # Compare the values before converting, because an integer may be too large for a float.
    if not 0 < value <= MAX_TIMEOUT_S:
        raise InvalidArgument(
            f"{field}: must be above 0 and at most {MAX_TIMEOUT_S:g}, got {told(value)}",
            field=field,
        )
    return float(value)


def idle_timeout(value: object) -> float | None:
    """Return the timeout in seconds, or None. Raises `InvalidArgument` in the same cases as
    `timeout`.
    """
    return None if value is None else timeout(value, "idle_timeout_s")


def number_between(field: str, value: object, least: float, most: float) -> float:
    """Return the number. Raises `InvalidArgument` if it is out of bounds."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong_type(field, "a number", value)
    if not least <= value <= most:
        raise InvalidArgument(
            f"{field}: must be from {least:g} to {most:g}, got {told(value)}", field=field
        )
    return float(value)


def address(value: object) -> str:
    """Return the gRPC target for an address, which is either HOST:PORT or any other form that gRPC
    supports.

    Raises `InvalidArgument` if the address is invalid.
    """
    text = unicode_text("address", value).strip()
    if not text:
        raise InvalidArgument("address: is empty; set it to HOST:PORT", field="address")
    scheme, slashes, rest = text.partition("://")
    if slashes and scheme.lower() in _URL_SCHEMES:
        secure = " and tls=True" if scheme.lower() in _SECURE_SCHEMES else ""
        host = urlsplit(f"//{rest}").hostname or "HOST"
        raise InvalidArgument(
            f"address: {told(text)} is a URL; use HOST:PORT of the gateway's gRPC port, such as "
            f"{told(f'{host}:50050')}{secure}",
            field="address",
        )
    if not _GRPC_SCHEME.match(text):
        _check_port(text)
    return text


def _check_port(host_and_port: str) -> None:
    """Raise `InvalidArgument` if gRPC would misread the port or treat it as part of the host
    name.
    """
    try:
        ipaddress.IPv6Address(host_and_port)
    except ValueError:
        pass
    else:
        return
    try:
        parsed = urlsplit(f"//{host_and_port}")
        fits = ":" not in host_and_port.rpartition("]")[2] or parsed.port
        whole = (
            parsed.netloc == host_and_port
            and "@" not in host_and_port
            and (host_and_port.count(":") < 2 or host_and_port.startswith("["))
        )
    except ValueError:
        fits = whole = False
    if not (fits and whole):
        raise InvalidArgument(
            f"address: must be HOST:PORT with a port from 1 to 65535, got {told(host_and_port)}",
            field="address",
        )


def wrong_type(field: str, wanted: str, value: object) -> InvalidArgument:
    """Return the error for a value of the wrong type."""
    kind = type(value).__name__
    return InvalidArgument(f"{field}: must be {wanted}, got {kind}: {told(value)}", field=field)
