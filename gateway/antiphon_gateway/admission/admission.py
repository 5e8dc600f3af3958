"""Decides which requests may start when calls and slots are scarce. This module performs no I/O. It
receives events and returns decisions.

A request needs calls on the gateway (the role `CALLS`) and slots on stages. It either receives all
of them at once or waits. After each event, the following holds:

- A request waits only if it cannot start or if an earlier request is waiting for the same
  resources.
- Requests are ordered by priority, then by their API keys' turns, and then by arrival time, as
  defined in `waiting_line.py`. Audio requests have a head start over text requests, and
  conversation turns have a head start over both. The head start is a quarter of the longest wait,
  so a request can only be overtaken by others that arrive soon after it.
- If too many requests are waiting, those at the end of the line are denied, as described in
  `WaitingLine.crowding`. A request that would start too late is denied as early as possible, even
  if only another request causes the delay. Its wait is estimated as the mean plus two standard
  deviations.
- A stage can be full even if this gateway only uses a few of its slots, because other gateways use
  it too. In that case, the stage refuses the request, which then returns to its place in the line.
  `role_slots.py` decides when to try again.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from antiphon_gateway.admission.admission_request import (
    CALLS,
    AdmissionRequest,
    QueueEntry,
    Urgency,
)
from antiphon_gateway.admission.role_slots import RoleSlots
from antiphon_gateway.admission.waiting_line import UNKNOWN_S, WaitingLine

LONGEST_RETRY_S = 60.0
"""The maximum `Retry-After` in seconds. Clients ignore longer values."""
SHORTEST_RETRY_S = 1.0
NO_NUMBER = -1
"""The number that is used for a hypothetical request."""
DEVIATIONS = 2.0
"""A request is queued only if it could still start in time after a wait that exceeds the mean by
this many standard deviations.
"""

__all__ = [
    "CALLS",
    "AdmissionQueue",
    "Decision",
    "Denied",
    "Granted",
    "Reason",
    "Urgency",
    "AdmissionRequest",
]


class Reason(enum.StrEnum):
    """Why a request wasn't admitted."""

    QUEUE_LENGTH = "max_waiting"
    QUEUE_BYTES = "max_memory_bytes"
    SHED = "shed"
    TOO_MANY = "too_many"
    LATE = "late"
    TIME = "queue_timeout_s"
    STAGE_FULL = "stage_full"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class Granted:
    """The request may start."""

    number: int


@dataclass(frozen=True, slots=True)
class Denied:
    """The request was rejected. `retry_after_s` is the time in seconds after which the client
    should try again.

    `for_slots` is true if the stages didn't have enough slots, and false if only the gateway's
    calls ran out.
    """

    number: int
    reason: Reason
    retry_after_s: float
    for_slots: bool = False


Decision = Granted | Denied


class AdmissionQueue:
    """The admission queue, as described in the module docstring.

    The caller gives each request a unique number. Methods that report an event take the current
    time and return the resulting decisions.
    """

    def __init__(
        self, *, max_calls: int, max_waiting: int, max_waiting_bytes: int, longest_wait_s: float
    ) -> None:
        self._max_waiting = max_waiting
        self._max_waiting_bytes = max_waiting_bytes
        self._longest_wait_s = longest_wait_s
        self._supplies: dict[str, RoleSlots] = {CALLS: RoleSlots(max_calls, max_calls)}
        self._line = WaitingLine()
        self._granted: dict[int, QueueEntry] = {}
        self._closed = False

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return len(self._line)

    @property
    def waiting_bytes(self) -> int:
        """The total size of the waiting requests in bytes."""
        return self._line.size_bytes

    @property
    def calls(self) -> int:
        """The number of calls that are in use."""
        return self._supplies[CALLS].held

    def held(self, role: str) -> int:
        """Return how many slots of a role this gateway is using."""
        return self._supplies[role].held if role in self._supplies else 0

    def hold_s(self, role: str) -> float | None:
        """Return the mean time for which a slot of this role is used, or None if it isn't known
        yet.
        """
        return self._supplies[role].mean_s if role in self._supplies else None

    def wanted(self) -> Counter[str]:
        """Return the number of slots of each role that waiting requests need. Requests that are
        waiting only for calls don't count, because more slots wouldn't help them.
        """
        wanted: Counter[str] = Counter()
        for entry in self._short_of_slots():
            for role in entry.request.roles:
                wanted[role] += entry.request.count
        return wanted

    # -- facts -------------------------------------------------------------------------

    def ask(
        self, number: int, request: AdmissionRequest, slots: Mapping[str, int], now: float
    ) -> list[Decision]:
        """Add a request. `slots` contains the number of slots that each of its stages has reported,
        or 0 if a stage hasn't reported any.
        """
        for role in request.roles:
            self._supply(role).resize(slots.get(role, 0) or math.inf)
        entry = self._entry(number, request, now)
        # An unavailable replica may come back while the request is waiting.
        if any(self._supply(role).most < request.count for role in entry.needs):
            for_slots = request.count <= self._supplies[CALLS].slots
            return [self._denied(entry, Reason.TOO_MANY, now, for_slots=for_slots)]
        self._line.add(entry)
        done = self._schedule(now)
        if entry not in self._line:
            return done
        shed = self._unbearable(entry, now)
        return done + self._deny(shed, now) + self._schedule(now) if shed else done

    def would_deny(self, request: AdmissionRequest, slots: Mapping[str, int], now: float) -> bool:
        """Return whether a new request would be denied right away. This doesn't change
        the queue.
        """
        for role in request.roles:
            self._supply(role).resize(slots.get(role, 0) or math.inf)
        entry = self._entry(NO_NUMBER, request, now)
        if any(self._supply(role).most < request.count for role in entry.needs):
            return True
        if not (self._line or self._short(entry, entry.needs, Counter())):
            return False
        self._line.add(entry)
        try:
            return entry in self._unbearable(entry, now)
        finally:
            self._line.remove(entry)

    def resize(self, slots: Mapping[str, int], now: float) -> list[Decision]:
        """Update the total number of slots of some stages. The number is 0 if a replica doesn't
        report its slots.
        """
        for role, count in slots.items():
            self._supply(role).resize(count or math.inf)
        return self._schedule(now)

    def opened(self, number: int, now: float) -> list[Decision]:
        """Record that a granted request now has slots on all of its stages."""
        entry = self._granted[number]
        entry.opened = True
        for role in entry.request.roles:
            self._supply(role).succeed(entry.request.count)
        return self._schedule(now)

    def asked_again(self, number: int) -> None:
        """Record that a granted request was sent to other stages, which haven't granted it slots
        yet.
        """
        self._granted[number].opened = False

    def refused(self, number: int, role: str, now: float) -> list[Decision]:
        """Record that a stage had no slot for a granted request. The request goes back to its place
        in the line.

        If the role isn't known, any of the request's stages may have refused it.
        """
        entry = self._granted.pop(number)
        granted_at = min(entry.held.values())
        self._give_back_all(entry, now, measured=False)
        roles = entry.request.roles
        # If there is no queue, the next request is sent to the stage as well, and the stage refuses
        # it.
        for each in (roles & {role} or roles) if self._max_waiting else ():
            self._supply(each).refuse(granted_at, now)
        if self._closed:
            reason = Reason.SHUTDOWN
        elif not self._max_waiting:
            reason = Reason.STAGE_FULL
        elif entry.latest <= now:
            reason = Reason.TIME
        else:
            self._line.add(entry)
            self._line.settle(entry, 0.0)
            return self._schedule(now)
        for_slots = reason is not Reason.SHUTDOWN
        return [self._denied(entry, reason, now, for_slots=for_slots), *self._schedule(now)]

    def freed(self, number: int, role: str, now: float) -> list[Decision]:
        """Record that a stage has finished its part of a granted request. Further calls for the
        same stage have no effect.
        """
        entry = self._granted.get(number)
        if entry is None or role not in entry.held:
            return []
        self._give_back(entry, role, now, measured=True)
        return self._schedule(now)

    def leave(self, number: int, now: float) -> list[Decision]:
        """Record that a request has completed or has stopped waiting. Has no effect if the request
        is unknown.
        """
        if (entry := self._granted.pop(number, None)) is not None:
            self._line.settle(entry, now - entry.held[CALLS] if entry.opened else 0.0)
            self._give_back_all(entry, now, measured=entry.opened)
            self._line.call_s = self._supplies[CALLS].mean_s or UNKNOWN_S
            return self._schedule(now)
        if (waiting := self._line.find(number)) is not None:
            self._line.remove(waiting)
            return self._schedule(now)
        return []

    def pass_time(self, now: float) -> list[Decision]:
        """Handle all deadlines that have passed."""
        late = [entry for entry in self._line.arrivals() if entry.latest <= now]
        return self._deny(dict.fromkeys(late, Reason.TIME), now) + self._schedule(now)

    def deny_all(self) -> list[Decision]:
        """Deny all requests from now on, even those that were granted and are later refused by a
        stage.
        """
        self._closed = True
        waiting, self._line = list(self._line), WaitingLine()
        return [Denied(entry.number, Reason.SHUTDOWN, SHORTEST_RETRY_S) for entry in waiting]

    def next_deadline(self) -> float | None:
        """Return the time at which `pass_time` has to be called next, or None if there are no
        deadlines.
        """
        if not self._line:
            return None
        moments = [entry.latest for entry in self._line.arrivals()]
        for entry in self._line.arrivals():
            supplies = (self._supplies[role] for role in entry.request.roles)
            moments += [s.retry_at for s in supplies if s.limited and s.free < entry.request.count]
        return min(moments)

    # -- estimates ---------------------------------------------------------------------

    def retry_after_s(self, request: AdmissionRequest, now: float) -> float:
        """Return the number of seconds until a request with the same needs could start if it were
        the last one in its key's line.
        """
        last = QueueEntry(0, request, math.inf, math.inf)
        return min(max(self._wait_s(last, now) or 0.0, SHORTEST_RETRY_S), LONGEST_RETRY_S)

    def _wait_s(self, entry: QueueEntry, now: float, deviations: float = 0.0) -> float | None:
        """Return the number of seconds that a request will probably have to wait, or None if this
        is unknown.

        The estimate is based on how long slots have been used so far and on the requests ahead of
        this one.
        """
        return self._wait_behind_s(entry, _needed(self._line.before(entry)), now, deviations)

    def _wait_behind_s(
        self, entry: QueueEntry, ahead: Mapping[str, int], now: float, deviations: float
    ) -> float | None:
        """Return the expected wait plus a number of standard deviations.

        The release of slots is modeled as a Poisson process. The standard deviation of the time
        until the k-th release is therefore sqrt(k) times the standard deviation of the time until
        the first.
        """
        waits = []
        for role in entry.needs:
            supply = self._supply(role)
            service_s = supply.service_s(now)
            if service_s is not None and supply.slots < math.inf:
                excess = supply.held + ahead.get(role, 0) + entry.request.count - supply.slots
                freed = max(0.0, excess)
                events = freed + deviations * math.sqrt(freed)
                waits.append(events * service_s / supply.slots)
        return max(waits, default=None)

    def _unbearable(self, entry: QueueEntry, now: float) -> dict[QueueEntry, Reason]:
        """Return the requests that have to be denied if one more request has to wait, along with
        the reasons.

        Thanks to its head start, the new request may have overtaken others with the same key and
        priority. Those requests may still wait for as long as they were originally allowed to.
        """
        request = entry.request
        if self._is_late(entry, self._wait_s(entry, now, DEVIATIONS), now):
            return {entry: Reason.LATE}
        gone = self._line.crowding(
            entry, most=self._max_waiting, most_bytes=self._max_waiting_bytes
        )
        if gone is None:
            too_many = self.waiting > self._max_waiting
            return {entry: Reason.QUEUE_LENGTH if too_many else Reason.QUEUE_BYTES}
        shed = dict.fromkeys(gone, Reason.SHED)
        if behind := self._line.behind(entry):
            ahead = _needed(self._line.before(entry))
            ahead.update(dict.fromkeys(entry.needs, entry.request.count))
            for each in behind:
                if each in shed:
                    continue
                is_own = (each.request.key, each.request.priority) == (
                    request.key,
                    request.priority,
                )
                wait_s = self._wait_behind_s(each, ahead, now, DEVIATIONS)
                if not is_own and self._is_late(each, wait_s, now):
                    shed[each] = Reason.LATE
                else:
                    ahead.update(dict.fromkeys(each.needs, each.request.count))
        return shed

    def _is_late(self, entry: QueueEntry, wait_s: float | None, now: float) -> bool:
        """Return whether a request that had to wait this long would start or end too late."""
        if wait_s is None:
            return False
        means_s = [self._supply(role).mean_s or 0.0 for role in entry.needs]
        asked_at = entry.latest - self._longest_of(entry.request)
        ends = now + wait_s + max(means_s)
        return now + wait_s > entry.latest or ends > asked_at + entry.request.finish_within_s

    def _entry(self, number: int, request: AdmissionRequest, now: float) -> QueueEntry:
        """Return the entry for a request that arrives now."""
        rank = now + request.urgency * self._longest_wait_s / 4
        return QueueEntry(number, request, rank, now + self._longest_of(request))

    def _longest_of(self, request: AdmissionRequest) -> float:
        """Return how long a request can wait."""
        return min(self._longest_wait_s, request.start_within_s, request.finish_within_s)

    def _deny(self, reasons: Mapping[QueueEntry, Reason], now: float) -> list[Decision]:
        """Deny these requests."""
        short = {entry.number for entry in self._short_of_slots()} if reasons else set()
        for entry in reasons:
            self._line.remove(entry)
        return [
            self._denied(entry, reason, now, for_slots=entry.number in short)
            for entry, reason in reasons.items()
        ]

    def _denied(
        self, entry: QueueEntry, reason: Reason, now: float, *, for_slots: bool = False
    ) -> Denied:
        retry_after_s = self.retry_after_s(entry.request, now)
        return Denied(entry.number, reason, retry_after_s, for_slots)

    # -- slots -------------------------------------------------------------------------

    def _schedule(self, now: float) -> list[Decision]:
        """Grant all requests that can start, in order."""
        if not self._line:
            return []
        most = max(each.request.count for each in self._line.arrivals())
        for supply in self._supplies.values():
            supply.try_again(most, now)
        done: list[Decision] = []
        reserved: Counter[str] = Counter()
        for entry in self._line:
            if self._supplies[CALLS].free <= reserved[CALLS]:
                break
            short = self._short(entry, entry.needs, reserved)
            if not short:
                self._grant(entry, now)
                done.append(Granted(entry.number))
            elif not any(_is_unsure(supply, entry) for supply in short):
                # Later requests must not take the resources that this one needs, unless it isn't
                # known how long it has to wait.
                reserved.update(dict.fromkeys(entry.needs, entry.request.count))
        return done

    def _short(
        self, entry: QueueEntry, roles: Iterable[str], reserved: Mapping[str, int]
    ) -> list[RoleSlots]:
        """Return the roles that don't have enough slots for the request."""
        supplies = ((self._supplies[role], reserved[role]) for role in roles)
        return [each for each, taken in supplies if each.free - taken < entry.request.count]

    def _short_of_slots(self) -> Iterator[QueueEntry]:
        """Yield the requests that would have to wait even if there were enough free calls."""
        reserved: Counter[str] = Counter()
        for entry in self._line:
            short = self._short(entry, entry.request.roles, reserved)
            if short:
                yield entry
                if not any(_is_unsure(supply, entry) for supply in short):
                    reserved.update(dict.fromkeys(entry.request.roles, entry.request.count))

    def _grant(self, entry: QueueEntry, now: float) -> None:
        self._line.charge(entry)
        self._line.remove(entry)
        self._granted[entry.number] = entry
        for role in entry.needs:
            self._supplies[role].take(entry.request.count, now)
            entry.held[role] = now

    def _give_back_all(self, entry: QueueEntry, now: float, *, measured: bool) -> None:
        for role in tuple(entry.held):
            self._give_back(entry, role, now, measured=measured)

    def _give_back(self, entry: QueueEntry, role: str, now: float, *, measured: bool) -> None:
        since = entry.held.pop(role)
        self._supplies[role].give_back(entry.request.count, since, now, measured=measured)

    def _supply(self, role: str) -> RoleSlots:
        return self._supplies.setdefault(role, RoleSlots())


def _is_unsure(supply: RoleSlots, entry: QueueEntry) -> bool:
    """Return whether the request needs a resource for which the wait can't be estimated."""
    return supply.limited or supply.slots < entry.request.count


def _needed(entries: Iterable[QueueEntry]) -> Counter[str]:
    """Return the total number of slots of each role that the requests need."""
    needed: Counter[str] = Counter()
    for entry in entries:
        for role in entry.needs:
            needed[role] += entry.request.count
    return needed
