"""Eject replicas of a role from new sessions after failures. Pure.

A replica that fails at once has free slots, so that it would seem better than the others. A replica
with several consecutive failures is ejected, longer each time. Then it gets one trial session, and
returns if this session succeeds. At most half of a role's replicas are ejected: if most of them
fail, the cause is elsewhere, and the others would be overloaded. Sessions from before an ejection
are no evidence.
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
    # While it is out: until when; infinite while a session tries it.
    until: float | None = None
    # Whether it may get, or has got, the one session that decides; and the number of that.
    on_trial: bool = False
    trial: int | None = None


class Outliers(Generic[Key]):
    """The outliers of one role. `failures` consecutive failures eject a replica for `first_s`,
    doubled each time up to `longest_s`. Every fact returns whether the replica's eligibility has
    changed."""

    def __init__(self, *, failures: int, first_s: float, longest_s: float) -> None:
        self._failures = failures
        self._first_s = first_s
        self._longest_s = longest_s
        self._records: dict[Key, _Record] = {}
        self._trials = itertools.count()
        self.ejections = 0

    @property
    def out(self) -> int:
        """How many are ejected or on trial."""
        return sum(each.until is not None or each.on_trial for each in self._records.values())

    def is_out(self, key: Key) -> bool:
        """Whether it may get no session now."""
        record = self._records.get(key)
        return record is not None and record.until is not None

    def picked(self, key: Key) -> int | None:
        """Record that a replica gets a session.

        A replica on trial gets no other session until this one, with the returned number, has a
        result.
        """
        record = self._records.get(key)
        if record is None or not record.on_trial or record.until is not None:
            return None
        record.until, record.trial = math.inf, next(self._trials)
        return record.trial

    def failed(self, key: Key, known: int, now: float, trial: int | None = None) -> bool:
        """A session has failed there; `known` replicas serve, these among them."""
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
        """A session was answered there."""
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
        """Record that the trial session has ended without a result; another session may follow."""
        record = self._records.get(key)
        if record is None or trial is None or record.trial != trial:
            return False
        record.until = record.trial = None
        return True

    def let_back(self, known: Collection[Key]) -> list[Key]:
        """Return replicas to service so that at most half of the serving ones are ejected.

        Replicas whose time has passed return first. One more failure ejects them again, if the
        limit allows.
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
        """Remove a replica that is gone or was restarted."""
        self._records.pop(key, None)

    def pass_time(self, now: float) -> list[Key]:
        """Those that may be tried from now on."""
        due = [k for k, r in self._records.items() if r.until is not None and r.until <= now]
        for key in due:
            self._records[key].until, self._records[key].on_trial = None, True
        return due

    def next_deadline(self) -> float | None:
        """When `pass_time` next has something to do; None: not until something happens."""
        moments = [r.until for r in self._records.values() if r.until not in (None, math.inf)]
        return min((each for each in moments if each is not None), default=None)


def _may_tell(record: _Record, trial: int | None) -> bool:
    """Whether a session counts: of a replica that is out, the one that tries it."""
    if record.on_trial:
        return trial is not None and trial == record.trial
    return record.until is None
