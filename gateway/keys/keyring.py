"""The keys that hold now: read at the start, and again when their file has changed."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import InvalidArgument, Unauthenticated
from gateway.keys.key_file import KeyEntry, digest_of, read_key_file
from gateway.keys.key_use import KeyUse

log = logging.getLogger("gateway.keys")

MAX_KEY_CHARS = 512
_SCHEME = "bearer "
_Stamp = tuple[int, int, int]


class Keyring:
    """Finds the key of a request. Without a file everybody may ask.

    Raises `InvalidArgument` for a file that will not do. When one that holds already becomes
    so, what held before goes on holding, and the log says why.
    """

    def __init__(
        self,
        config: GatewayConfig,
        refused: Callable[[str], None] = lambda _: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = Path(config.keys_file) if config.keys_file else None
        self._reload_s = config.keys_reload_s
        self._refused = refused
        self._clock = clock
        self._open = KeyUse()
        self._uses: dict[str, KeyUse] = {}
        self._by_digest: Mapping[str, KeyEntry] = {}
        self._reading = asyncio.Lock()
        self._looked_at = clock()
        self._stamp: _Stamp | None = None
        if self._path is not None:
            self._stamp = _stamp_of(self._path)
            self._take(read_key_file(self._path))

    async def key_of(self, authorization: str | None) -> KeyUse:
        """The key of a header or of gRPC metadata, `Bearer KEY`. Raises `Unauthenticated`."""
        if self._path is None:
            return self._open
        await self._look(self._path)
        given = authorization or ""
        if given[: len(_SCHEME)].lower() != _SCHEME:
            self._refused("no_key")
            raise Unauthenticated(
                "no API key was given; send the header 'authorization: Bearer KEY'"
            )
        key = given[len(_SCHEME) :].strip()
        digest = digest_of(key[: MAX_KEY_CHARS + 1])
        entry = self._by_digest.get(digest)
        # How long the look-up takes says something of digests, and nothing of keys.
        if entry is None or not hmac.compare_digest(entry.sha256, digest):
            self._refused("invalid_key")
            raise Unauthenticated("the API key is not one of this gateway's")
        return self._uses[entry.name]

    async def _look(self, path: Path) -> None:
        """Read the file anew if it has changed; not more often than every `keys_reload_s`."""
        if self._clock() - self._looked_at < self._reload_s or self._reading.locked():
            return
        async with self._reading:
            self._looked_at = self._clock()
            stamp = await asyncio.to_thread(_stamp_of, path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            try:
                entries = await asyncio.to_thread(read_key_file, path)
            except InvalidArgument as error:
                log.error("the keys that held before hold on: %s", error.message)
                return
            self._take(entries)
            log.info("%d keys were read from %s", len(entries), path)

    def _take(self, entries: tuple[KeyEntry, ...]) -> None:
        """Have these keys hold; those that held before keep what they have taken."""
        uses = {}
        for entry in entries:
            use = self._uses.get(entry.name) or KeyUse(entry.name, entry, self._refused)
            use.limits = entry
            uses[entry.name] = use
        self._uses = uses
        self._by_digest = {entry.sha256: entry for entry in entries}


def _stamp_of(path: Path) -> _Stamp | None:
    """What changes with the file, also where it is a link to another one; None without one."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
