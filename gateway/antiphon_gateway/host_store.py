"""Stores data that several gateways on one host share, in an SQLite database.

The gateways are separate processes without a coordinator, and any of them can be killed at any
time. SQLite's transactions are undone if that happens, and its locks are released by the kernel. A
transaction takes a fraction of a millisecond, because nothing has to survive a crash of the host.

If a gateway is suspended during a transaction, its locks remain. The other gateways notice this
after `BUSY_S` seconds. From then on, they don't use the database, and all their transactions fail
immediately. A task (`HostStore.recover`) tries to lock the database without waiting until this
succeeds.

Each gateway also holds a lock on a file of its own for as long as it runs. This way, the others
can tell whether it is still running.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from antiphon.errors import InvalidArgument, Unavailable

log = logging.getLogger("gateway")

FIELD = "gateway.sharing.directory"
BUSY_S = 0.1
"""The number of seconds to wait for another gateway's transaction, which usually takes less than a
millisecond. The event loop is blocked during this time. SQLite adds up the durations of its pauses
and doesn't look at a clock, so a busy CPU prolongs the wait.
"""
STARTUP_BUSY_S = 30.0
"""The number of seconds to wait at startup, when no client is waiting for an answer yet."""
RETRY_S = 0.5
"""The number of seconds between two attempts to lock the database after another gateway has kept it
locked.
"""
_NAME_BYTES = 8
_FAILED = "the database that the gateways on this host share can't be used"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class StoreBlocked(Unavailable):
    """Raised if another gateway keeps the database locked."""


class HostStore:
    """An SQLite database in a directory. All gateways on a host open the same database.

    `holder` identifies this process. The functions in `on_recovered` are called when the database
    can be used again after another gateway has kept it locked. `busy_s` replaces `BUSY_S`. Raises
    `InvalidArgument` if the directory can't be used.
    """

    def __init__(self, directory: str, *, busy_s: float = BUSY_S) -> None:
        self._directory = Path(directory)
        self._busy_s = busy_s
        self._blocked_at = 0.0
        self._blocked = asyncio.Event()
        self.on_recovered: list[Callable[[], Awaitable[None]]] = []
        self.holder = secrets.token_hex(_NAME_BYTES)
        try:
            self._lock = os.open(self._lock_file(self.holder), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path = self._directory / f"gateways-{_boot_id()}.sqlite"
            # SQLite gives the files that it adds the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(path, timeout=STARTUP_BUSY_S, isolation_level=None)
            self._database.execute("PRAGMA journal_mode = PERSIST")
            self._database.execute("PRAGMA synchronous = OFF")
        except (OSError, sqlite3.Error) as error:
            raise InvalidArgument(
                f"{FIELD}: {directory}: {error}; give a directory that gateways can write to",
                field=FIELD,
            ) from error

    def create(self, table: str, *statements: str) -> None:
        """Execute statements in one transaction, unless the table that they create exists.

        To find out whether it exists, the database is only read. This is possible even if another
        gateway has been suspended during a transaction, unless it was just completing it.
        """
        with self._waiting(STARTUP_BUSY_S), self._converting_errors():
            found = self._database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,))
            if found.fetchone() is None:
                with self._begun() as database:
                    for each in statements:
                        database.execute(each)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Return a context manager for a transaction that excludes the transactions of other
        gateways.

        If an error is raised, the transaction is undone. Raises `StoreBlocked` if another gateway
        keeps the database locked, and `Unavailable` if the database can't be used, for example
        because the disk is full or the gateway has closed it.
        """
        if self.is_blocked:
            raise StoreBlocked(f"{_FAILED}: another gateway is blocking the database")
        try:
            with self._converting_errors(), self._begun() as database:
                yield database
        except StoreBlocked:
            self._block()
            raise

    @contextlib.contextmanager
    def _begun(self) -> Iterator[sqlite3.Connection]:
        """Return a context manager for a transaction. Raises `sqlite3.Error`."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield self._database
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _converting_errors(self) -> Iterator[None]:
        """Convert errors of the database. See `transaction`."""
        try:
            yield
        except sqlite3.Error as error:
            kind = StoreBlocked if _is_busy(error) else Unavailable
            raise kind(f"{_FAILED}: {error}") from error

    @property
    def is_blocked(self) -> bool:
        """Whether another gateway keeps the database locked."""
        return self._blocked.is_set()

    def _block(self) -> None:
        self._blocked_at = time.monotonic()
        self._blocked.set()
        log.warning(
            "%s: another gateway of this host keeps the database locked, because it is suspended "
            "or overloaded; until it continues or is killed, the limits of API keys apply to each "
            "gateway separately, and spoken answers are not kept",
            self._directory,
        )

    async def recover(self) -> None:
        """Whenever another gateway has kept the database locked, wait until it can be used again.
        Runs until it is cancelled.

        If a function in `on_recovered` fails, its error is logged.
        """
        while True:
            await self._blocked.wait()
            await asyncio.sleep(RETRY_S)
            if self._has_recovered():
                for each in self.on_recovered:
                    try:
                        await each()
                    except Exception:
                        log.exception("%s: an error after the database was locked", self._directory)

    def _has_recovered(self) -> bool:
        """Return whether the database can be locked at this moment."""
        try:
            with self._waiting(0.0):
                self._database.execute("BEGIN IMMEDIATE")
                self._database.execute("ROLLBACK")
        except sqlite3.Error as error:
            if _is_busy(error):
                return False
            # From now on, transactions report this error.
        self._blocked.clear()
        blocked_s = time.monotonic() - self._blocked_at
        log.warning("%s: the database was locked for %.1f s", self._directory, blocked_s)
        return True

    def is_running(self, holder: str) -> bool:
        """Return whether a gateway is still running."""
        if holder == self.holder:
            return True
        try:
            lock = os.open(self._lock_file(holder), os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            self._lock_file(holder).unlink(missing_ok=True)
            return False
        finally:
            os.close(lock)

    def close(self) -> None:
        """Close the database. From then on, this gateway counts as gone."""
        self._database.close()
        self._lock_file(self.holder).unlink(missing_ok=True)
        os.close(self._lock)

    @contextlib.contextmanager
    def _waiting(self, seconds: float) -> Iterator[None]:
        """Wait this long for other gateways' transactions inside the context. Afterwards, the usual
        limit applies again.
        """
        self._database.execute(f"PRAGMA busy_timeout = {round(1e3 * seconds)}")
        try:
            yield
        finally:
            self._database.execute(f"PRAGMA busy_timeout = {round(1e3 * self._busy_s)}")

    def _lock_file(self, holder: str) -> Path:
        return self._directory / f"{holder}.lock"


def _is_busy(error: sqlite3.Error) -> bool:
    """Return whether an error means that another process has locked the database."""
    # Errors that the module raises itself have no code. The lower byte is the primary code.
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & 0xFF == sqlite3.SQLITE_BUSY


def _boot_id() -> str:
    """Return an ID that changes when the host restarts, or an empty string if there is none.

    The database of an earlier boot is useless: its times are those of another clock, no gateway
    that used it is left, and it may be incomplete.
    """
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
