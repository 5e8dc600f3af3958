"""Stops sending new sessions to replicas that keep failing. This module performs no I/O.

A replica that fails immediately always has free slots, so it would look like the best choice. After
several consecutive failures, a replica is ejected. Each ejection lasts longer than the previous
one. After an ejection, the replica receives a single trial session and returns to service if that
session succeeds. At most half of a role's replicas are ejected at a time. If most of them are
failing, the cause is probably elsewhere, and ejecting them would only overload the rest. Sessions
that began before an ejection don't count.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Record:
    failures: int = 0
    ejections: int = 0
    # When an ejection ends. This is infinite while a trial session is running.
    until: float | None = None
    # Whether the replica is allowed a trial session or has already received one, and the number of
    # that session.
    on_trial: bool = False
    trial: int | None = None


class Outliers(Generic[Key]):
    """Tracks the outliers of one role.

    After `failures` consecutive failures, a replica is ejected for `first_s` seconds. This time
    doubles with each further ejection, up to `longest_s` seconds. Methods that record an event
    return whether the replica's eligibility has changed.
    """

    def __init__(self, *, failures: int, first_s: float, longest_s: float) -> None:
        self._failures = failures
        self._first_s = first_s
        self._longest_s = longest_s
        self._records: dict[Key, _Record] = {}
        self._trials = itertools.count()
        self.ejections = 0

    @property
    def out(self) -> int:
        """The number of replicas that are currently ejected or on trial."""
        return sum(each.until is not None or each.on_trial for each in self._records.values())

    def is_out(self, key: Key) -> bool:
        """Return whether the replica currently can't receive sessions."""
        record = self._records.get(key)
        return record is not None and record.until is not None

    def picked(self, key: Key) -> int | None:
        """Record that a replica receives a session. If it is a trial session, its number is
        returned.

        A replica on trial receives no other sessions until the result of this one is known.
        """
        record = self._records.get(key)
        if record is None or not record.on_trial or record.until is not None:
            return None
        record.until, record.trial = math.inf, next(self._trials)
        return record.trial

    def failed(self, key: Key, known: int, now: float, trial: int | None = None) -> bool:
        """Record that a session has failed on the replica. `known` is the number of serving
        replicas. Ejected replicas are included.
        """
        record = self._records.setdefault(key, _Record())
        if not _may_tell(record, trial):
            return False
        record.failures += 1
        if not record.on_trial and (record.failures < self._failures or 2 * (self.out + 1) > known):
            return False
        record.until = now + min(self._first_s * 2**record.ejections, self._longest_s)
        record.ejections = min(record.ejections + 1, 32)
        record.on_trial, record.trial = False, None
        self.ejections += 1
        return True

    def succeeded(self, key: Key, trial: int | None = None) -> bool:
        """Record that a session has succeeded on the replica."""
        record = self._records.get(key)
        if record is None or not _may_tell(record, trial):
            return False
        was_out = record.until is not None
        record.failures, record.until, record.on_trial, record.trial = 0, None, False, None
        record.ejections = max(0, record.ejections - 1)
        if not record.ejections:
            del self._records[key]
        return was_out

    def undecided(self, key: Key, trial: int | None) -> bool:
        """Record that the trial session has ended without a result. There may be another one."""
        record = self._records.get(key)
        if record is None or trial is None or record.trial != trial:
            return False
        record.until = record.trial = None
        return True

    def let_back(self, known: Collection[Key]) -> list[Key]:
        """Return replicas to service until no more than half of the serving replicas are ejected.

        Replicas whose ejection has expired are returned first. After that, a single failure is
        enough to eject a replica again, if the limit permits it.
        """
        out = [key for key in known if self._is_known_bad(key)]
        out.sort(key=lambda key: self._records[key].until or 0.0)
        back = out[: max(0, len(out) - len(known) // 2)]
        for key in back:
            record = self._records[key]
            record.until, record.on_trial, record.trial = None, False, None
        return back

    def _is_known_bad(self, key: Key) -> bool:
        record = self._records.get(key)
        return record is not None and (record.until is not None or record.on_trial)

    def forget(self, key: Key) -> None:
        """Remove a replica that is gone or has been restarted."""
        self._records.pop(key, None)

    def pass_time(self, now: float) -> list[Key]:
        """End all ejections that have expired and return the replicas that may now receive a trial
        session.
        """
        due = [k for k, r in self._records.items() if r.until is not None and r.until <= now]
        for key in due:
            self._records[key].until, self._records[key].on_trial = None, True
        return due

    def next_deadline(self) -> float | None:
        """Return when to call `pass_time` next, or None if no ejection will expire."""
        moments = [r.until for r in self._records.values() if r.until not in (None, math.inf)]
        return min((each for each in moments if each is not None), default=None)


def _may_tell(record: _Record, trial: int | None) -> bool:
    """Return whether the result of a session counts. For a replica that is ejected or on trial,
    only the result of the trial session counts.
    """
    if record.on_trial:
        return trial is not None and trial == record.trial
    return record.until is None
