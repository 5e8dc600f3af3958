"""The file with the API keys: hashes, names and limits. Pure, except for reading the file.

A key has 256 random bits, which cannot be guessed. A plain SHA-256 of it is therefore as safe in a
file as a slow hash, which exists to make guessing of passwords expensive. A slow hash would cost
tens of milliseconds per request, and requests with wrong keys could exhaust the processor.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from antiphon.deployment.yaml_file import decode_yaml
from antiphon.errors import InvalidArgument
from antiphon_gateway.admission.priority import Priority
from antiphon_gateway.regular_file import read_regular

MAX_FILE_BYTES = 4 << 20
KEY_PREFIX = "antiphon-"
KEY_BYTES = 32

KeyName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._@-]{1,64}\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Digests = Annotated[tuple[Digest, ...], msgspec.Meta(min_length=1, max_length=8)]
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
    """One key: its name, which logs show, and the SHA-256 of it in hexadecimal digits.

    While a key is rotated, `sha256` lists the old and the new one, which share name and limits.
    """

    name: KeyName
    sha256: Digest | Digests
    # With a time zone, such as 2027-01-31T00:00:00Z; null: never.
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None

    @property
    def digests(self) -> tuple[str, ...]:
        """All of `sha256`."""
        return (self.sha256,) if isinstance(self.sha256, str) else self.sha256


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file, as YAML."""

    keys: tuple[KeyEntry, ...]


def digest_of(key: str) -> str:
    """What the file has of a key."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def new_key() -> str:
    """Return a new random key."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def read_key_file(path: Path) -> tuple[KeyEntry, ...]:
    """The entries. Raises `InvalidArgument` for a file that cannot be read, or is wrong."""
    field = "gateway.keys_file"
    content = read_regular(path, most_bytes=MAX_FILE_BYTES, field=field)
    try:
        # YAML has times of its own, which may also be quoted: all become text first.
        written = msgspec.to_builtins(decode_yaml(content))
        entries = msgspec.convert(written, KeyFile).keys
    except InvalidArgument as error:
        raise InvalidArgument(f"{field}: {path}: {error.message}", field=field) from error
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidArgument(f"{field}: {path}: {error}", field=field) from error
    names = [entry.name for entry in entries]
    digests = [digest for entry in entries for digest in entry.digests]
    for what, values in (("name", names), ("sha256", digests)):
        for value, times in Counter(values).items():
            if times > 1:
                raise InvalidArgument(
                    f"{field}: {path}: two keys have the {what} {value!r}", field=field
                )
    return entries
