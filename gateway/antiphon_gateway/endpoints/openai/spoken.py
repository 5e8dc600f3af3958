"""Stores the transcripts of spoken answers, so that later turns can refer to an answer by its ID
(OpenAI's `audio: {id}`).
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from antiphon.errors import Unavailable
from antiphon_gateway.host_store import HostStore

log = logging.getLogger("gateway")

OVERHEAD_BYTES = 256
"""The overhead of an entry in bytes, in addition to its transcript."""


class SpokenAnswers(Protocol):
    """The transcripts of spoken answers, by audio ID.

    If there is no room for an answer, it isn't stored. This ensures that no other answer expires
    earlier than `keep` has promised.
    """

    def keep(self, audio_id: str, transcript: str) -> int:
        """Store an answer's transcript. Returns the Unix time in seconds at which it expires. If
        the transcript can't be stored, this is the current time.
        """

    def transcript(self, audio_id: str) -> str:
        """Return an answer's transcript. If it has expired or is unknown, returns an empty
        string.
        """


class OwnSpokenAnswers:
    """The answers of this process. They are kept in memory, so they are lost when it ends."""

    def __init__(
        self, keep_s: float, limit_bytes: int, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._keep_s = int(keep_s)
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._held_bytes = 0
        # All transcripts are kept for the same time, so they expire in the order in which they were
        # added.
        self._kept: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def keep(self, audio_id: str, transcript: str) -> int:
        """Store an answer's transcript. See `SpokenAnswers`."""
        now = int(self._clock())
        self._forget_expired(now)
        size = _size_bytes(transcript)
        if not transcript or self._held_bytes + size > self._limit_bytes:
            return now
        self._held_bytes += size
        self._kept[audio_id] = (now + self._keep_s, transcript)
        return now + self._keep_s

    def transcript(self, audio_id: str) -> str:
        """Return an answer's transcript. See `SpokenAnswers`."""
        self._forget_expired(int(self._clock()))
        _, transcript = self._kept.get(audio_id, (0, ""))
        return transcript

    def _forget_expired(self, now: int) -> None:
        while self._kept:
            audio_id, (expires_at, transcript) = next(iter(self._kept.items()))
            if now < expires_at:
                return
            del self._kept[audio_id]
            self._held_bytes -= _size_bytes(transcript)


_TABLES = (
    "CREATE TABLE IF NOT EXISTS spoken (id TEXT PRIMARY KEY, expires INTEGER, size INTEGER,"
    " transcript BLOB) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS spoken_by_expiry ON spoken (expires, size)",
    "CREATE TABLE IF NOT EXISTS spoken_held (one INTEGER PRIMARY KEY, bytes INTEGER)",
    "INSERT OR IGNORE INTO spoken_held VALUES (1, 0)",
)


class SharedSpokenAnswers:
    """The answers of all gateways on a host. The gateways also share the limit."""

    def __init__(
        self,
        keep_s: float,
        limit_bytes: int,
        store: HostStore,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keep_s = int(keep_s)
        self._limit_bytes = limit_bytes
        self._store = store
        self._clock = clock
        store.create("spoken", *_TABLES)

    def keep(self, audio_id: str, transcript: str) -> int:
        """Store an answer's transcript. See `SpokenAnswers`."""
        now = int(self._clock())
        size = _size_bytes(transcript)
        if not transcript:
            return now
        try:
            with self._store.transaction() as database:
                (expired,) = database.execute(
                    "SELECT coalesce(sum(size), 0) FROM spoken WHERE expires <= ?", (now,)
                ).fetchone()
                database.execute("DELETE FROM spoken WHERE expires <= ?", (now,))
                (held,) = database.execute("SELECT bytes FROM spoken_held").fetchone()
                fits = held - expired + size <= self._limit_bytes
                if fits:
                    row = (audio_id, now + self._keep_s, size, _encoded(transcript))
                    database.execute("INSERT INTO spoken VALUES (?, ?, ?, ?)", row)
                database.execute(
                    "UPDATE spoken_held SET bytes = ?", (held - expired + (size if fits else 0),)
                )
                return now + self._keep_s if fits else now
        except Unavailable as error:
            log.warning("a spoken answer is not kept: %s", error.message)
            return now

    def transcript(self, audio_id: str) -> str:
        """Return an answer's transcript. See `SpokenAnswers`."""
        with self._store.transaction() as database:
            found = database.execute(
                "SELECT transcript FROM spoken WHERE id = ? AND expires > ?",
                (audio_id, int(self._clock())),
            ).fetchone()
        return "" if found is None else bytes(found[0]).decode(errors="surrogatepass")


def _encoded(transcript: str) -> bytes:
    return transcript.encode(errors="surrogatepass")


def _size_bytes(transcript: str) -> int:
    return OVERHEAD_BYTES + len(_encoded(transcript))
