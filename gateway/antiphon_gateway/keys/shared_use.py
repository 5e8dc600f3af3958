"""Tracks the use of keys across all gateways on a host, so that a key's limits apply to all of them
together.

Requests and conversations in progress are stored by gateway. If a gateway has been killed, its
share is removed as soon as it would make another gateway refuse something.

While another gateway keeps the store locked, a gateway only considers its own use. It keeps what it
has counted in memory and stores it as soon as the store can be used again. If this concerns too
many keys, the amounts of the least recently used ones are forgotten. A transaction
only stores the use of a few keys, because it blocks the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice

from antiphon.errors import Unavailable
from antiphon_gateway.host_store import HostStore, StoreBlocked
from antiphon_gateway.keys.minute import SECONDS, LastMinute

log = logging.getLogger("gateway.keys")

_TABLES = (
    "CREATE TABLE IF NOT EXISTS held (name TEXT, what TEXT, holder TEXT, number INTEGER,"
    " PRIMARY KEY (name, what, holder)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS minutes (name TEXT, what TEXT, second INTEGER, amount REAL,"
    " PRIMARY KEY (name, what, second)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS minutes_by_second ON minutes (second)",
)

SAVED_AT_ONCE = 16
"""The maximum number of keys whose use is stored in one transaction."""
MAX_UNSAVED = 20_000
"""The maximum number of keys and callers with an amount that isn't stored yet. Requests and audio
are counted separately.
"""
Counted = tuple[str, str]
"""The name of a key, and what is counted."""


class SharedUses:
    """The use of all keys in a store. `on_unshared` is called when something was decided or counted
    without the other gateways, because one of them keeps the store locked.
    """

    def __init__(self, store: HostStore, on_unshared: Callable[[], None] = lambda: None) -> None:
        self.store = store
        self.database: sqlite3.Connection | None = None
        """The database during a decision, or None if another gateway keeps it locked."""
        self.added: list[tuple[SharedMinute, float, float]] = []
        """What the current decision has added, with the time."""
        self.held: dict[Counted, int] = {}
        """The numbers that aren't stored yet."""
        self.amounts: dict[Counted, dict[int, float]] = {}
        """What isn't stored yet, by second. The key that was used last is at the end."""
        self.is_deciding = False
        self._stored: set[Counted] = set()
        """The keys for which this gateway has stored a number other than 0."""
        self._on_unshared = on_unshared
        store.create("minutes", *_TABLES)
        store.on_recovered.append(self._save_all)

    def of(self, name: str) -> SharedUse:
        """Return the use of one key."""
        return SharedUse(self, name)

    def hold(self, key: Counted, number: int) -> None:
        """Count how many requests or conversations this gateway has in progress."""
        if number or key in self._stored:
            self.held[key] = number
        else:
            self.held.pop(key, None)

    def count(self, key: Counted, second: int, amount: float) -> None:
        """Count an amount. Forget what is more than a minute old or exceeds `MAX_UNSAVED`."""
        unsaved = self.amounts.pop(key, {})
        unsaved[second] = unsaved.get(second, 0.0) + amount
        while (oldest := next(iter(unsaved))) <= second - SECONDS:
            del unsaved[oldest]
        self.amounts[key] = unsaved
        while len(self.amounts) > MAX_UNSAVED or self._first_is_old(second):
            del self.amounts[next(iter(self.amounts))]

    @contextmanager
    def decision(self) -> Iterator[None]:
        """Return a context manager in which no other gateway counts anything, unless one of them
        keeps the store locked. What is counted inside is stored at the end. A decision within a
        decision becomes part of it.

        If an error is raised, the added amounts don't count. Raises `Unavailable` if the store
        can't be used for another reason.
        """
        if self.is_deciding:
            yield
            return
        self.is_deciding = True
        is_decided = False
        try:
            with ExitStack() as transaction:
                try:
                    self.database = transaction.enter_context(self.store.transaction())
                except StoreBlocked:
                    self._on_unshared()
                yield
                is_decided = True
                if self.database is not None:
                    self._save(self.database)
            if self.database is not None:
                self._forget_saved()
        except BaseException as error:
            if not is_decided or not isinstance(error, StoreBlocked):
                for minute, amount, now in self.added:
                    minute.count(-amount, now)
                raise
            # The decision stands, but another gateway prevents it from being stored.
            self._on_unshared()
        finally:
            self.added.clear()
            self.database = None
            self.is_deciding = False

    def _first_is_old(self, second: int) -> bool:
        """Return whether the least recently used key was last used over a minute ago."""
        return max(next(iter(self.amounts.values()))) <= second - SECONDS

    def _save(self, database: sqlite3.Connection) -> None:
        for key in _first(self.held):
            row = (*key, self.store.holder)
            if number := self.held[key]:
                database.execute("INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?)", (*row, number))
            else:
                database.execute("DELETE FROM held WHERE (name, what, holder) = (?, ?, ?)", row)
        newest = 0
        for key in _first(self.amounts):
            for second, amount in self.amounts[key].items():
                database.execute(
                    "INSERT INTO minutes VALUES (?, ?, ?, ?)"
                    " ON CONFLICT DO UPDATE SET amount = amount + excluded.amount",
                    (*key, second, amount),
                )
                newest = max(newest, second)
        database.execute("DELETE FROM minutes WHERE second <= ?", (newest - SECONDS,))

    def _forget_saved(self) -> None:
        for key in _first(self.held):
            if self.held.pop(key):
                self._stored.add(key)
            else:
                self._stored.discard(key)
        for key in _first(self.amounts):
            del self.amounts[key]

    async def _save_all(self) -> None:
        """Store what could not be stored while another gateway kept the store locked."""
        try:
            while (self.held or self.amounts) and not self.store.is_blocked:
                with self.decision():
                    pass
                await asyncio.sleep(0)
        except Unavailable as error:
            log.warning("the use of keys is stored later: %s", error.message)


def _first(unsaved: Mapping[Counted, object]) -> list[Counted]:
    """Return the keys whose use the next transaction stores."""
    return list(islice(unsaved, SAVED_AT_ONCE))


class SharedUse:
    """The use of one key."""

    def __init__(self, uses: SharedUses, name: str) -> None:
        self.name = name
        self._uses = uses

    def minute(self, what: str) -> SharedMinute:
        """Return the amounts of the given kind in the last minute."""
        return SharedMinute(self._uses, (self.name, what))

    def decision(self) -> AbstractContextManager[None]:
        """Return a context manager for a decision. See `SharedUses`."""
        return self._uses.decision()

    def save(self) -> None:
        """Store what was counted outside of a decision. If the store can't be used, this is logged.
        In this case, it is stored the next time that this gateway stores something about any key.
        """
        try:
            with self._uses.decision():
                pass
        except Unavailable as error:
            log.warning("key %s: %s", self.name, error.message)

    def hold(self, what: str, number: int) -> None:
        """Count how many requests or conversations this gateway has in progress. The number is
        stored at the end of the decision, or by `save`.
        """
        self._uses.hold((self.name, what), number)

    def held_elsewhere(self, what: str) -> int:
        """Return how many requests or conversations the other gateways have in progress. While one
        of them keeps the store locked, this is 0.
        """
        if self._uses.database is None:
            return 0
        (number,) = self._uses.database.execute(
            "SELECT coalesce(sum(number), 0) FROM held WHERE (name, what) = (?, ?) AND holder != ?",
            (self.name, what, self._uses.store.holder),
        ).fetchone()
        return int(number)

    def forget_lost(self, what: str) -> None:
        """Remove the requests or conversations of gateways that are no longer running."""
        database, store = self._uses.database, self._uses.store
        if database is None:
            return
        for (holder,) in database.execute(
            "SELECT holder FROM held WHERE (name, what) = (?, ?)", (self.name, what)
        ).fetchall():
            if not store.is_running(holder):
                database.execute("DELETE FROM held WHERE holder = ?", (holder,))


class SharedMinute:
    """The amounts of the last sixty seconds. Unlike `LastMinute`, this class keeps them in the
    store. All methods except for `add` are called during a decision.

    Times are on the system's monotonic clock, which all processes on a host share.
    """

    def __init__(self, uses: SharedUses, key: Counted) -> None:
        self._uses = uses
        self._key = key
        self._own = LastMinute()

    def add(self, amount: float, now: float) -> None:
        """Add an amount. Outside of a decision, it counts even if it can't be stored yet."""
        self.count(amount, now)
        if self._uses.is_deciding:
            self._uses.added.append((self, amount, now))

    def count(self, amount: float, now: float) -> None:
        """Count an amount, which is negative if it was added by mistake."""
        self._own.add(amount, now)
        self._uses.count(self._key, math.floor(now), amount)

    def total(self, now: float) -> float:
        """Return the sum over the last minute. While another gateway keeps the store locked, this
        is only the sum at this gateway.
        """
        return self._read().total(now)

    def below_after_s(self, limit: float, now: float) -> float:
        """Return how long it will take until the total is below the limit. See `LastMinute`."""
        return self._read().below_after_s(limit, now)

    def _read(self) -> LastMinute:
        database = self._uses.database
        if database is None:
            return self._own
        amounts: dict[int, float] = dict(
            database.execute(
                "SELECT second, amount FROM minutes WHERE (name, what) = (?, ?)", self._key
            )
        )
        for second, amount in self._uses.amounts.get(self._key, {}).items():
            amounts[second] = amounts.get(second, 0.0) + amount
        minute = LastMinute()
        for second in sorted(amounts):
            minute.add(amounts[second], second)
        return minute
