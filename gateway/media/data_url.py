"""Files in data URLs."""

from __future__ import annotations

from collections.abc import Collection

from antiphon.errors import InvalidArgument, NotImplementedYet


def data_of_url(url: str, kind: str, media_types: Collection[str], field: str) -> str:
    """The base64 of a data URL, not decoded yet, if it is of one of these media types.

    Raises `InvalidArgument` for what is no such URL, and `NotImplementedYet` for one that
    would have to be fetched.
    """
    if url.startswith(("http://", "https://")):
        raise NotImplementedYet(
            f"{field}: nothing is fetched from the network; send the {kind} as a data URL",
            field=field,
        )
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
