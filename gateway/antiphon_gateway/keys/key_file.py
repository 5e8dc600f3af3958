"""The file that contains the API keys, with hashes, names and limits. Apart from reading the file,
this module performs no I/O.

Slow hashes protect passwords, because passwords can be guessed. A key has 256 random bits, so a
plain SHA-256 hash is just as safe. A slow hash would take tens of milliseconds per request, which
would allow requests with wrong keys to use up the CPU.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from antiphon.deployment.allowed_values import with_allowed_values
from antiphon.deployment.yaml_file import decode_yaml
from antiphon.errors import InvalidArgument
from antiphon_gateway.admission.priority import Priority
from antiphon_gateway.regular_file import read_regular

MAX_FILE_BYTES = 4 << 20
KEY_PREFIX = "antiphon-"
KEY_BYTES = 32

_NAME_PATTERN = r"^[A-Za-z0-9._@-]{1,64}\Z"
_DIGEST_PATTERN = r"^[0-9a-f]{64}\Z"
_IN_WORDS = {
    _NAME_PATTERN: "must be 1 to 64 letters, digits or -._@",
    _DIGEST_PATTERN: "must be the hash of a key as 64 hexadecimal digits in lower case; for a "
    "new key and its hash, run `antiphon keys new NAME`",
}
KeyName = Annotated[str, msgspec.Meta(pattern=_NAME_PATTERN)]
Digest = Annotated[str, msgspec.Meta(pattern=_DIGEST_PATTERN)]
Digests = Annotated[tuple[Digest, ...], msgspec.Meta(min_length=1, max_length=8)]
Most = Annotated[int, msgspec.Meta(ge=1)]


class KeyLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The limits of a key. If a limit is missing, it doesn't apply."""

    # The maximum number of concurrent requests. This includes requests that are waiting for a slot.
    # Transcripts of the user's speech in conversations aren't included, but they count as requests
    # per minute.
    concurrency: Most | None = None
    requests_per_minute: Most | None = None
    # The maximum number of seconds of audio that can be generated within one minute. Audio isn't
    # cut off at this limit, but no new requests are accepted beyond it.
    audio_seconds_per_minute: Most | None = None
    # The maximum number of concurrent conversations.
    conversations: Most | None = None
    # How early this key's requests are served when calls or slots are scarce.
    priority: Priority = Priority.NORMAL


class KeyEntry(KeyLimits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key's name and its SHA-256 in hexadecimal. The name appears in logs.

    While a key is being rotated, `sha256` contains both the old and the new hash. They share the
    name and the limits.
    """

    name: KeyName
    sha256: Digest | Digests
    # When the key expires. The time must include a time zone, as in 2027-01-31T00:00:00Z. If it is
    # null, the key never expires.
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None

    @property
    def digests(self) -> tuple[str, ...]:
        """All values in `sha256`."""
        return (self.sha256,) if isinstance(self.sha256, str) else self.sha256


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file as YAML."""

    keys: tuple[KeyEntry, ...]


def digest_of(key: str) -> str:
    """Return the hash of a key, as it is stored in the file."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def new_key() -> str:
    """Return a new random key."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def in_words(fault: str) -> str:
    """Return the error message of msgspec. If it contains a pattern, the pattern is explained."""
    for pattern, words in _IN_WORDS.items():
        if repr(pattern) in fault:
            return words
    return fault


def read_key_file(path: Path) -> tuple[KeyEntry, ...]:
    """Return the entries in the file. Raises `InvalidArgument` if the file can't be read or is
    invalid.
    """
    field = "gateway.keys_file"
    content = read_regular(path, most_bytes=MAX_FILE_BYTES, field=field)
    try:
        # YAML has a type for times, but times can also be quoted. All of them are converted to text
        # first.
        written = msgspec.to_builtins(decode_yaml(content))
        entries = msgspec.convert(written, KeyFile).keys
    except InvalidArgument as error:
        raise InvalidArgument(f"{field}: {path}: {error.message}", field=field) from error
    except (msgspec.ValidationError, TypeError) as error:
        fault, at, place = str(error).partition(" - at `$")
        fault = in_words(with_allowed_values(fault, KeyFile, place.rstrip("`")))
        raise InvalidArgument(f"{field}: {path}: {fault}{at}{place}", field=field) from error
    names = [entry.name for entry in entries]
    digests = [digest for entry in entries for digest in entry.digests]
    for what, values in (("name", names), ("sha256", digests)):
        for value, times in Counter(values).items():
            if times > 1:
                raise InvalidArgument(
                    f"{field}: {path}: two keys have the same {what}, {value!r}", field=field
                )
    return entries
