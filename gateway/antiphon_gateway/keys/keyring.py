"""The keys that are currently valid. They are read at startup, and again whenever their file has
changed.

When a key is revoked or expires, its conversations are ended. The file is polled as long as there
are conversations, because nothing notifies the gateway when a mounted Secret changes.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, Unauthenticated
from antiphon_gateway.keys.key_file import KeyEntry, digest_of, read_key_file
from antiphon_gateway.keys.key_use import KeyUse
from antiphon_gateway.keys.shared_use import SharedUses
from antiphon_gateway.keys.watched_file import WatchedFile

MAX_KEY_CHARS = 512
_SCHEME = "bearer "

EndConversation = Callable[[AntiphonError], None]
"""Ends one conversation. The error is sent to its client."""


class Keyring:
    """Looks up the key of a request. If there is no key file, every request is allowed.

    Raises `InvalidArgument` if the file is invalid. If it becomes invalid later, its last valid
    content stays in effect and an error is logged.
    """

    def __init__(
        self,
        config: GatewayConfig,
        refused: Callable[[str], None] = lambda _: None,
        *,
        shared: SharedUses | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._now = now
        self._conversations: dict[EndConversation, str] = {}
        self._watching: asyncio.Task[None] | None = None
        self._reload_s = config.keys_reload_s
        self._refused = refused
        self._shared = shared
        self._open = KeyUse()
        self._uses: dict[str, KeyUse] = {}
        self._by_digest: Mapping[str, KeyEntry] = {}
        self._entries: tuple[KeyEntry, ...] = ()
        self._file: WatchedFile[tuple[KeyEntry, ...]] | None = None
        if config.keys_file:
            path, reload_s = Path(config.keys_file), config.keys_reload_s
            self._file = WatchedFile(path, read_key_file, reload_s, clock, "keys")
            self._take(self._file.content)

    async def key_of(self, authorization: str | None, *, counted: bool = True) -> KeyUse:
        """Return the key given in a header or in gRPC metadata as `Bearer KEY`. Raises
        `Unauthenticated` if it isn't valid.

        If `counted` is true, a request without a key is counted as refused.
        """
        if self._file is None:
            return self._open
        await self._look(self._file)
        key = bearer(authorization)
        if key is None:
            if counted:
                self._refused("no_key")
            raise Unauthenticated(
                "the API key is missing; send the header 'authorization: Bearer KEY'"
            )
        digest = digest_of(key[: MAX_KEY_CHARS + 1])
        fault = self._fault(digest)
        if fault is not None:
            if counted:
                self._refused("invalid_key")
            raise fault
        return self._uses[self._by_digest[digest].name]

    @contextmanager
    def conversation(
        self, key: KeyUse, authorization: str | None, end: EndConversation
    ) -> Iterator[None]:
        """Return a context manager that covers one conversation of the key that was found for
        `authorization`.

        `end` is called when the key is no longer valid. Raises `KeyLimitReached` if there are too
        many conversations.
        """
        with key.conversation():
            if self._file is None:
                yield
                return
            self._conversations[end] = digest_of((bearer(authorization) or "")[: MAX_KEY_CHARS + 1])
            if self._watching is None or self._watching.done():
                self._watching = asyncio.create_task(self._watch(self._file))
            try:
                yield
            finally:
                del self._conversations[end]
                if not self._conversations:
                    self._watching.cancel()

    def _fault(self, digest: str) -> Unauthenticated | None:
        """Return why a key isn't valid, or None if it is."""
        entry = self._by_digest.get(digest)
        # The time that the lookup takes may reveal something about digests, but nothing about keys.
        if entry is None or not any(hmac.compare_digest(each, digest) for each in entry.digests):
            return Unauthenticated("the API key is unknown to this gateway")
        if entry.expires is not None and entry.expires.timestamp() <= self._now():
            return Unauthenticated(f"the API key expired at {entry.expires.isoformat()}")
        return None

    async def _watch(self, file: WatchedFile[tuple[KeyEntry, ...]]) -> None:
        """End any conversation whose key is no longer valid."""
        while self._conversations:
            await asyncio.sleep(self._reload_s)
            await self._look(file)
            for end, digest in list(self._conversations.items()):
                if (fault := self._fault(digest)) is not None:
                    end(fault)

    async def _look(self, file: WatchedFile[tuple[KeyEntry, ...]]) -> None:
        """Reload the keys if the file has changed."""
        await file.look()
        if file.content is not self._entries:
            self._take(file.content)

    def _take(self, entries: tuple[KeyEntry, ...]) -> None:
        """Make these keys valid. The counts of keys that were already valid are kept, and so are
        those of removed keys until their requests have ended, because a key may return.
        """
        self._entries = entries
        uses = {name: use for name, use in self._uses.items() if use.in_use}
        for entry in entries:
            use = self._uses.get(entry.name) or self._new_use(entry)
            use.limits = entry
            uses[entry.name] = use
        self._uses = uses
        self._by_digest = {digest: entry for entry in entries for digest in entry.digests}

    def _new_use(self, entry: KeyEntry) -> KeyUse:
        shared = None if self._shared is None else self._shared.of(entry.name)
        return KeyUse(entry.name, entry, self._refused, shared=shared)


def bearer(authorization: str | None) -> str | None:
    """Return the key in `Bearer KEY`, or None if there isn't one."""
    given = authorization or ""
    if given[: len(_SCHEME)].lower() != _SCHEME:
        return None
    return given[len(_SCHEME) :].strip()
