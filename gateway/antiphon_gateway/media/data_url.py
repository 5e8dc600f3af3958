"""Reads the files in requests. Files are either contained in data URLs or referenced by other
URLs.
"""

from __future__ import annotations

import binascii
from collections.abc import Collection

import pybase64

from antiphon.errors import InvalidArgument
from antiphon_gateway.media.remote import RemoteUrl

_AS_PLAIN = str.maketrans("-_", "+/", " \t\r\n\f\v")
"""Translates the URL-safe alphabet to the standard one and removes whitespace."""
_ANY_TYPES = ("", "application/octet-stream")
"""Media types that carry no information. The actual type can be determined from the file itself."""


def data_of_url(url: str, kind: str, media_types: Collection[str], field: str) -> str | RemoteUrl:
    """Return a data URL's base64 text without decoding it. For other URLs, return the location of
    the file.

    Raises `InvalidArgument` if the value is neither or if its media type isn't one of those given.
    """
    if url.lower().startswith(("http://", "https://")):
        return RemoteUrl(url)
    head, comma, data = url.partition(",")
    head = head.lower()
    media_type, *parameters = (each.strip() for each in head.removeprefix("data:").split(";"))
    if not comma or not head.startswith("data:") or parameters[-1:] != ["base64"]:
        raise InvalidArgument(f"{field}: must look like data:TYPE;base64,DATA", field=field)
    if media_type not in media_types and media_type not in _ANY_TYPES:
        known = ", ".join(sorted(media_types))
        raise InvalidArgument(
            f"{field}: unsupported media type {media_type!r} for {kind}s; use one of: {known}",
            field=field,
        )
    return data


def data_or_url(text: str, field: str) -> str | RemoteUrl:
    """Return the value of a field that contains plain base64 in OpenAI's API.

    The value can also be a data URL with any media type, which is what Qwen's SDKs send, or the
    location of a file. Raises `InvalidArgument` if it is a data URL without base64.
    """
    if text[:8].lower().startswith(("http://", "https://")):
        return RemoteUrl(text)
    if text[:5].lower() != "data:":
        return text
    head, comma, data = text.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise InvalidArgument(
            f"{field}: must be base64, or look like data:TYPE;base64,DATA", field=field
        )
    return data


def decoded_base64(text: str, field: str) -> bytes:
    """Return the bytes of base64 text. It may use either alphabet, with or without line breaks and
    padding.

    Raises `InvalidArgument` if it contains any other characters or if the length isn't possible.
    """
    try:
        return bytes(pybase64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        plain = text.translate(_AS_PLAIN).rstrip("=")
    try:
        return bytes(pybase64.b64decode(plain + "=" * (-len(plain) % 4), validate=True))
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(f"{field}: is not valid base64: {error}", field=field) from error


def file_bytes(data: bytes | str | RemoteUrl, field: str) -> bytes:
    """Return the bytes of a file that is given as bytes or as base64. This is slow for large files.
    Remote files must have been fetched before.

    Raises `InvalidArgument` if the file is empty or isn't valid base64.
    """
    assert not isinstance(data, RemoteUrl), f"{field} was not fetched"
    file = data if isinstance(data, bytes) else decoded_base64(data, field)
    if not file:
        raise InvalidArgument(f"{field}: is empty", field=field)
    return file
