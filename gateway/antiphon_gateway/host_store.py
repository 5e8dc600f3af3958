"""Stores data that several gateways on one host share, in an SQLite database.

The gateways are separate processes without a coordinator, and any of them can be killed at any
time. SQLite's transactions are undone if that happens, and its locks are released by the kernel. A
transaction takes a fraction of a millisecond, because nothing has to survive a crash of the host.

Each gateway also holds a lock on a file of its own for as long as it runs. This way, the others
can tell whether it is still running.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from antiphon.errors import InvalidArgument, Unavailable

FIELD = "gateway.sharing.directory"
BUSY_S = 2.0
"""The number of seconds to wait for another gateway's transaction. It usually takes less than a
millisecond, but the process could be suspended during this time.
"""
STARTUP_BUSY_S = 30.0
"""The number of seconds to wait at startup, when no client is waiting for an answer yet."""
_NAME_BYTES = 8
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HostStore:
    """An SQLite database in a directory. All gateways on a host open the same database.

    `holder` identifies this process. Raises `InvalidArgument` if the directory can't be used.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
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

    def create(self, *statements: str) -> None:
        """Execute statements that create tables unless they exist."""
        with self._waiting(STARTUP_BUSY_S), self.transaction() as database:
            for each in statements:
                database.execute(each)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Return a context manager for a transaction that excludes the transactions of other
        gateways. If this process is already in a transaction, the new one becomes part of it.

        If an error is raised, the transaction is undone. Raises `Unavailable` if the database can't
        be used, for example because the disk is full or the gateway has closed it.
        """
        try:
            if self._database.in_transaction:
                yield self._database
                return
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise Unavailable(
                f"the gateways of this host can't share what they count: {error}"
            ) from error

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
            self._database.execute(f"PRAGMA busy_timeout = {round(1e3 * BUSY_S)}")

    def _lock_file(self, holder: str) -> Path:
        return self._directory / f"{holder}.lock"


def _boot_id() -> str:
    """Return an ID that changes when the host restarts, or an empty string if there is none.

    The database of an earlier boot is useless: its times are those of another clock, no gateway
    that used it is left, and it may be incomplete.
    """
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
