"""Tracks the use of keys across all gateways on a host, so that a key's limits apply to all of them
together.

Requests and conversations in progress are stored by gateway. If a gateway has been killed, its
share is removed as soon as it would make another gateway refuse something.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from antiphon.errors import Unavailable
from antiphon_gateway.host_store import HostStore
from antiphon_gateway.keys.minute import SECONDS, LastMinute

log = logging.getLogger("gateway.keys")

_TABLES = (
    "CREATE TABLE IF NOT EXISTS held (name TEXT, what TEXT, holder TEXT, number INTEGER,"
    " PRIMARY KEY (name, what, holder)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS minutes (name TEXT, what TEXT, second INTEGER, amount REAL,"
    " PRIMARY KEY (name, what, second)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS minutes_by_second ON minutes (second)",
)


class SharedUses:
    """The use of all keys in a store."""

    def __init__(self, store: HostStore) -> None:
        self.store = store
        # What could not be stored, by key and by what is counted.
        self.unsaved: dict[tuple[str, str], int] = {}
        store.create(*_TABLES)

    def of(self, name: str) -> SharedUse:
        """Return the use of one key."""
        return SharedUse(self, name)


class SharedUse:
    """The use of one key."""

    def __init__(self, uses: SharedUses, name: str) -> None:
        self.store = uses.store
        self.name = name
        self._unsaved = uses.unsaved

    def minute(self, what: str) -> SharedMinute:
        """Return the amounts of the given kind in the last minute."""
        return SharedMinute(self, what)

    def record(self, change: Callable[[], None]) -> None:
        """Make a change that an answer doesn't depend on. If the store can't be used, this is
        logged.
        """
        try:
            with self.store.transaction():
                change()
        except Unavailable as error:
            log.warning("key %s: %s", self.name, error.message)

    def hold(self, what: str, number: int) -> None:
        """Store how many requests or conversations this gateway has in progress.

        If this fails, the number is stored the next time that this gateway stores one of any key.
        """
        self._unsaved[self.name, what] = number
        with self.store.transaction() as database:
            for (name, each), held in self._unsaved.items():
                key = (name, each, self.store.holder)
                if held:
                    database.execute(
                        "INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?)", (*key, held)
                    )
                else:
                    database.execute("DELETE FROM held WHERE (name, what, holder) = (?, ?, ?)", key)
        if not database.in_transaction:
            self._unsaved.clear()

    def held_elsewhere(self, what: str) -> int:
        """Return how many requests or conversations the other gateways have in progress."""
        with self.store.transaction() as database:
            (number,) = database.execute(
                "SELECT coalesce(sum(number), 0) FROM held WHERE (name, what) = (?, ?)"
                " AND holder != ?",
                (self.name, what, self.store.holder),
            ).fetchone()
            return int(number)

    def forget_lost(self, what: str) -> None:
        """Remove the requests or conversations of gateways that are no longer running."""
        with self.store.transaction() as database:
            for (holder,) in database.execute(
                "SELECT holder FROM held WHERE (name, what) = (?, ?)", (self.name, what)
            ).fetchall():
                if not self.store.is_running(holder):
                    database.execute("DELETE FROM held WHERE holder = ?", (holder,))


class SharedMinute:
    """The amounts of the last sixty seconds. Unlike `LastMinute`, this class keeps them in the
    store.

    Times are on the system's monotonic clock, which all processes on a host share.
    """

    def __init__(self, use: SharedUse, what: str) -> None:
        self._use = use
        self._what = what

    def add(self, amount: float, now: float) -> None:
        """Add an amount."""
        second = math.floor(now)
        with self._use.store.transaction() as database:
            database.execute("DELETE FROM minutes WHERE second <= ?", (second - SECONDS,))
            database.execute(
                "INSERT INTO minutes VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET amount = amount + excluded.amount",
                (self._use.name, self._what, second, amount),
            )

    def total(self, now: float) -> float:
        """Return the sum over the last minute."""
        return self._read().total(now)

    def below_after_s(self, limit: float, now: float) -> float:
        """Return how long it will take until the total is below the limit. See `LastMinute`."""
        return self._read().below_after_s(limit, now)

    def _read(self) -> LastMinute:
        minute = LastMinute()
        with self._use.store.transaction() as database:
            for second, amount in database.execute(
                "SELECT second, amount FROM minutes WHERE (name, what) = (?, ?) ORDER BY second",
                (self._use.name, self._what),
            ):
                minute.add(amount, second)
        return minute
