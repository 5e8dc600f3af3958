"""The file with the keys: hashes, names and limits. Pure, but for reading it.

A key has 256 random bits, which nobody can guess. So a plain SHA-256 of it is as safe in a file as
a slow hash would be, whose purpose is to make guessing of passwords expensive; and a slow one would
cost a request tens of milliseconds, and let anybody who sends wrong keys keep the processor busy.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Annotated

import msgspec

from antiphon.errors import InvalidArgument
from gateway.calls.priority import Priority

MAX_FILE_BYTES = 4 << 20
KEY_PREFIX = "antiphon-"
KEY_BYTES = 32

KeyName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._@-]{1,64}$")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
Most = Annotated[int, msgspec.Meta(ge=1)]


class KeyLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a key may take, and when; what is left out is not limited."""

    # Requests at a time, those that wait for a slot among them; transcripts of what is said in
    # conversations are not, but count in the minute.
    concurrency: Most | None = None
    requests_per_minute: Most | None = None
    # Seconds of audio made in a minute. What goes beyond is not cut, but nothing more begins.
    audio_seconds_per_minute: Most | None = None
    # Realtime connections at a time.
    conversations: Most | None = None
    # How early its requests are served where calls or slots are scarce.
    priority: Priority = Priority.NORMAL


class KeyEntry(KeyLimits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One key: its name, which logs show, and the SHA-256 of it in hexadecimal digits."""

    name: KeyName
    sha256: Digest


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file, as YAML."""

    keys: tuple[KeyEntry, ...]


def digest_of(key: str) -> str:
    """What the file has of a key."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def new_key() -> str:
    """A key that nobody has."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def read_key_file(path: Path) -> tuple[KeyEntry, ...]:
    """The entries. Raises `InvalidArgument` for a file that cannot be read, or is wrong."""
    field = "gateway.keys_file"
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(f"{field}: {path}: {error.strerror}", field=field) from error
    if len(content) > MAX_FILE_BYTES:
        raise InvalidArgument(f"{field}: {path}: more than {MAX_FILE_BYTES} bytes", field=field)
    try:
        entries = msgspec.yaml.decode(content, type=KeyFile).keys
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{field}: {path}: {error}", field=field) from error
    for what in ("name", "sha256"):
        seen = set()
        for entry in entries:
            value = getattr(entry, what)
            if value in seen:
                raise InvalidArgument(
                    f"{field}: {path}: two keys have the {what} {value!r}", field=field
                )
            seen.add(value)
    return entries
