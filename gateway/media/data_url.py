"""Files that requests bring in data URLs, or name by other ones."""

from __future__ import annotations

import binascii
from collections.abc import Collection

import pybase64

from antiphon.errors import InvalidArgument
from gateway.media.remote import RemoteUrl


def data_of_url(url: str, kind: str, media_types: Collection[str], field: str) -> str | RemoteUrl:
    """The base64 of a data URL, not decoded yet, if it is of one of these media types; or where
    the file is. Raises `InvalidArgument` for what is no such URL."""
    if url.lower().startswith(("http://", "https://")):
        return RemoteUrl(url)
    head, comma, data = url.partition(",")
    media_type, *parameters = head.removeprefix("data:").lower().split(";")
    if not comma or not head.startswith("data:") or parameters[-1:] != ["base64"]:
        raise InvalidArgument(f"{field}: must be data:TYPE;base64,DATA", field=field)
    if media_type not in media_types:
        known = ", ".join(sorted(media_types))
        raise InvalidArgument(
            f"{field}: no media type {media_type!r} for {kind}s; there are: {known}", field=field
        )
    return data


def file_bytes(data: bytes | str | RemoteUrl, field: str) -> bytes:
    """The file: as it is, or of base64. Takes long. What is somewhere else was fetched before.

    Raises `InvalidArgument` for one that is empty or no base64.
    """
    assert not isinstance(data, RemoteUrl), f"{field} was not fetched"
    try:
        file = data if isinstance(data, bytes) else bytes(pybase64.b64decode(data, validate=True))
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(f"{field}: is not base64: {error}", field=field) from error
    if not file:
        raise InvalidArgument(f"{field}: is empty", field=field)
    return file
