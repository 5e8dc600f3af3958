"""Seals conversation state that is stored by clients. When a client sends it back, a gateway can be
sure that the state hasn't been modified.

A seal is an HMAC-SHA256 over the name of the client's API key, the expiry time, and the content.
The content isn't encrypted, because it is the client's own conversation. The first line of the key
file is the current key. Seals that were created with one of the other keys in the file are still
accepted, so that keys can be rotated. Without a key file, the process uses a random key.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import struct
import time
from collections.abc import Callable
from pathlib import Path

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.transport.renewed_files import stamp_of
from antiphon_gateway.regular_file import UnreadableFile, read_regular

log = logging.getLogger("gateway.seal")

FIELD = "gateway.resume.key_file"
LEAST_KEY_CHARS = 32
MAX_FILE_BYTES = 64 << 10
_PURPOSE = b"antiphon conversation 1"
_MAC_BYTES = hashlib.sha256().digest_size
_UNTIL = struct.Struct(">Q")
SEAL_BYTES = _MAC_BYTES + _UNTIL.size
"""The size of a seal without its content."""


class Seal:
    """Creates and verifies seals. Raises `InvalidArgument` if the key file is invalid.

    If the file becomes invalid later, an error is logged and the previous keys stay in use.
    """

    def __init__(
        self,
        path: str,
        *,
        holds_s: float,
        reload_s: float,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = Path(path) if path else None
        self._holds_s = holds_s
        self._reload_s = reload_s
        self._now, self._clock = now, clock
        self._looked_at = clock()
        self._stamp = None if self._path is None else stamp_of(self._path)
        self._fault = ""
        self._keys = (secrets.token_bytes(),) if self._path is None else read_keys(self._path)

    def close(self, content: bytes, owner: str) -> bytes:
        """Return a token that contains `content` and is valid for the API key named `owner`."""
        self._look()
        until = _UNTIL.pack(int(self._now() + self._holds_s))
        return _mac(self._keys[0], owner, until, content) + until + content

    def open(self, token: bytes, owner: str, most_bytes: int) -> bytes:
        """Return the content of a token.

        Raises `InvalidArgument` if the token is too large or if it wasn't created with one of the
        known keys for this API key. Raises `FailedPrecondition` if the token has expired.
        """
        if len(token) > most_bytes + SEAL_BYTES:
            raise InvalidArgument(
                f"token: has {len(token)} bytes, which is more than any token can have "
                f"({most_bytes + SEAL_BYTES}, see gateway.resume.bytes)",
                field="token",
            )
        self._look()
        mac, until, content = token[:_MAC_BYTES], token[_MAC_BYTES:SEAL_BYTES], token[SEAL_BYTES:]
        # Don't use `any`. The time it takes would reveal which of the keys matched.
        alike = [hmac.compare_digest(_mac(key, owner, until, content), mac) for key in self._keys]
        if len(token) < SEAL_BYTES or True not in alike:
            raise InvalidArgument(
                f"token: was not issued to this client by a gateway with the same key ({FIELD} "
                "specifies the key; without it, each gateway generates its own)",
                field="token",
            )
        if _UNTIL.unpack(until)[0] < self._now():
            raise FailedPrecondition(
                f"token: is older than {self._holds_s:g} s (gateway.resume.within_s); open a "
                "new conversation",
                field="token",
            )
        return content

    def _look(self) -> None:
        """Reload the file if it has changed. This is checked at most once every
        `reload_s` seconds.
        """
        if self._path is None or self._clock() - self._looked_at < self._reload_s:
            return
        self._looked_at = self._clock()
        stamp = stamp_of(self._path)
        if stamp == self._stamp:
            return
        try:
            self._keys = read_keys(self._path)
        except InvalidArgument as error:
            self._stamp = None if isinstance(error, UnreadableFile) else stamp
            if error.message != self._fault:
                self._fault = error.message
                log.error("the keys for resumed conversations were not updated: %s", error.message)
            return
        self._stamp, self._fault = stamp, ""


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Return the keys in a file, one per line. Raises `InvalidArgument` if the file is invalid."""
    content = read_regular(path, most_bytes=MAX_FILE_BYTES, field=FIELD)
    keys = tuple(line.strip() for line in content.splitlines() if line.strip())
    if not keys:
        raise InvalidArgument(f"{FIELD}: {path}: the file is empty", field=FIELD)
    if min(map(len, keys)) < LEAST_KEY_CHARS:
        raise InvalidArgument(
            f"{FIELD}: {path}: a key must have at least {LEAST_KEY_CHARS} characters; create "
            "one with `openssl rand -hex 32`",
            field=FIELD,
        )
    return keys


def _mac(key: bytes, owner: str, until: bytes, content: bytes) -> bytes:
    made = hmac.new(key, digestmod=hashlib.sha256)
    # Every part either has a fixed length or is preceded by its length. Therefore, different parts
    # can't result in the same bytes.
    named = owner.encode()
    for part in (_PURPOSE, struct.pack(">I", len(named)), named, until, content):
        made.update(part)
    return made.digest()
