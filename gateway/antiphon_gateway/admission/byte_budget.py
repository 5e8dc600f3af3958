"""Bytes that the gateway holds for clients: one budget, counted by what holds them.

Each kind of holder has at most its share of the budget, and the shares exceed the whole: what one
kind does not use, others can. The last eighth is for complete answers alone, so that requests and
conversations do not displace computed output.

If bytes are not free, leases are evicted. First come those that have been silent for longest: a
request body that does not proceed, a fetched URL that stalls, an answer that is not read. So idle
clients cannot keep the budget from active ones. Then come the oldest of those that are only spare:
requests kept for failover. If that would not be enough, nothing is evicted.
"""

from __future__ import annotations

import enum
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import Self

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import ResourceExhausted
from antiphon_gateway.metrics import Metrics, Refused

SILENT_S = 1.0
"""A lease that has not moved for so long can be evicted."""
SETTING = "gateway.limits.max_memory_bytes"


class Holder(enum.StrEnum):
    """What holds bytes, by its name in metrics."""

    UPLOADS = "uploads"
    WAITING = "waiting"
    ANSWERING = "answering"
    CONVERSATIONS = "conversations"
    UNREAD = "unread"


SHARES = {
    Holder.UPLOADS: Fraction(1, 4),
    Holder.WAITING: Fraction(1, 4),
    Holder.ANSWERING: Fraction(7, 8),
    Holder.CONVERSATIONS: Fraction(1, 2),
    Holder.UNREAD: Fraction(1, 4),
}
"""What each kind of holder may have of the budget."""
ALL_BUT_UNREAD = Fraction(7, 8)

_WHAT = {
    Holder.UPLOADS: "request bodies, fetched files and what is decoded of them",
    Holder.WAITING: "requests that wait for a slot",
    Holder.ANSWERING: "requests that are answered",
    Holder.CONVERSATIONS: "conversations",
    Holder.UNREAD: "unread answers",
}


class BudgetExceeded(ResourceExhausted):
    """The budget, or a holder's share of it, is used up."""


def share_bytes(config: GatewayConfig, holder: Holder) -> int:
    """The most bytes that one kind of holder may have."""
    return int(SHARES[holder] * config.limits.max_memory_bytes)


def _ignore(_: Holder) -> None:
    """Count no refusals."""


def _nothing() -> None:
    """Do nothing at an eviction."""


class ByteBudget:
    """`limit_bytes` with leases. `count` is called for each lease that is refused, or evicted
    because its client was silent."""

    def __init__(
        self,
        limit_bytes: int,
        *,
        count: Callable[[Holder], None] = _ignore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.count = count
        self._limit_bytes = limit_bytes
        self._most = {holder: int(share * limit_bytes) for holder, share in SHARES.items()}
        self._held = dict.fromkeys(Holder, 0)
        self._leases: OrderedDict[ByteLease, None] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """What all leases have."""
        return sum(self._held.values())

    def held(self, holder: Holder) -> int:
        """What the leases of one kind have."""
        return self._held[holder]

    def lease(
        self, holder: Holder, on_evict: Callable[[], None] = _nothing, *, of_client: bool = True
    ) -> ByteLease:
        """An empty lease, to be closed. `on_evict` is called when it is evicted.

        `of_client`: its bytes come from a client or go to one.
        """
        lease = ByteLease(self, holder, on_evict, of_client=of_client)
        self._leases[lease] = None
        return lease

    def clear(self) -> None:
        """Evict every upload that waits for a client."""
        for lease in list(self._leases):
            if lease.holder is Holder.UPLOADS and lease.of_client and lease.moved_at < math.inf:
                lease.evict()

    def missing(self, holder: Holder, size: int) -> int:
        """How many bytes are not free of `size` more for a holder; 0 or less if all are."""
        return max(self._missing(holder, size))

    def make_room(self, holder: Holder, size: int) -> None:
        """Evict leases until `size` more bytes of a holder are free.

        Raises `BudgetExceeded`, and evicts none, when that is not enough.
        """
        own, all_bytes = self._missing(holder, size)
        giving: list[ByteLease] = []
        evictable = self._evictable()
        while own > 0 or all_bytes > 0:
            if (lease := next(evictable, None)) is None:
                raise BudgetExceeded(self._full(holder, own), retry_after_s=SILENT_S)
            if all_bytes > 0 or lease.holder is holder:
                giving.append(lease)
                all_bytes -= lease.size_bytes
                own -= lease.size_bytes if lease.holder is holder else 0
        for lease in giving:
            lease.evict()

    def change(self, holder: Holder, more: int) -> None:
        """A lease has so many bytes more, or fewer."""
        self._held[holder] += more

    def touch(self, lease: ByteLease) -> None:
        """Make it the one that moved last."""
        self._leases.move_to_end(lease)

    def forget(self, lease: ByteLease) -> None:
        """Remove a lease; further calls do nothing."""
        self._leases.pop(lease, None)

    def _missing(self, holder: Holder, size: int) -> tuple[int, int]:
        """Bytes that are missing of a holder's share, and of the whole."""
        most = self._limit_bytes
        if holder is not Holder.UNREAD:
            most = int(ALL_BUT_UNREAD * most)
        own = self._held[holder] + size - self._most[holder]
        return own, self.held_bytes + size - most

    def _evictable(self) -> Iterator[ByteLease]:
        """Leases that can be evicted, the first to go first."""
        silent_since = self.clock() - SILENT_S
        yield from (each for each in self._leases if each.moved_at < silent_since)
        yield from (each for each in self._leases if each.is_spare)

    def _full(self, holder: Holder, own: int) -> str:
        if own > 0:
            return (
                f"{_WHAT[holder]} take all of their share of {SETTING} "
                f"({self._most[holder]} of {self._limit_bytes} bytes)"
            )
        return f"requests and conversations take all of {SETTING} ({self._limit_bytes} bytes)"


class ByteLease:
    """One client's part of a budget, until it is closed or the block that it enters ends."""

    def __init__(
        self, budget: ByteBudget, holder: Holder, on_evict: Callable[[], None], *, of_client: bool
    ) -> None:
        self.holder = holder
        self.of_client = of_client
        self.size_bytes = 0
        self.evicted = self.is_spare = False
        self.moved_at = budget.clock()
        self._budget = budget
        self._on_evict = on_evict
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def moved(self, size_bytes: int) -> None:
        """The client has sent or read something; the lease has that size from now on.

        Raises `BudgetExceeded` when the bytes are not free, and after an eviction.
        """
        if self.evicted:
            raise eviction()
        self.moved_at = self._budget.clock()
        self._budget.touch(self)
        self.take(size_bytes)

    def take(self, size_bytes: int) -> None:
        """Have that size from now on. Raises `BudgetExceeded` when the bytes are not free."""
        more = size_bytes - self.size_bytes
        if more > 0:
            try:
                self._budget.make_room(self.holder, more)
            except BudgetExceeded:
                self._budget.count(self.holder)
                raise
        self.resize(size_bytes)

    def resize(self, size_bytes: int) -> None:
        """Have that size from now on, whether or not the bytes are free; none once closed."""
        if not self.closed:
            self._budget.change(self.holder, size_bytes - self.size_bytes)
            self.size_bytes = size_bytes

    def move(self, holder: Holder) -> None:
        """Count the bytes as another holder's."""
        size_bytes = self.size_bytes
        self.resize(0)
        self.holder = holder
        self.resize(size_bytes)

    def keep(self) -> None:
        """No client has to do anything for it: the lease is not evicted any more."""
        self.moved_at = math.inf
        self.is_spare = False

    def spare(self, on_evict: Callable[[], None]) -> None:
        """It can be done without: the lease is evicted when others need the bytes."""
        self.keep()
        self._on_evict = on_evict
        self.is_spare = not self.closed

    def evict(self) -> None:
        """Give the bytes back and call `on_evict`."""
        if not self.is_spare:
            self._budget.count(self.holder)
        on_evict = self._on_evict
        self.close()
        self.evicted = True
        on_evict()

    def close(self) -> None:
        """Give the bytes back; further calls do nothing."""
        self.resize(0)
        self.closed = True
        # Otherwise it and what it counts would hold each other.
        self._on_evict = _nothing
        self._budget.forget(self)


def eviction() -> BudgetExceeded:
    """The error of a client whose lease was evicted."""
    return BudgetExceeded(
        "it stood still and gave way to others; send it again", retry_after_s=SILENT_S
    )


def memory_of(config: GatewayConfig, metrics: Metrics) -> ByteBudget:
    """The budget of a gateway, with its metrics."""

    def count(holder: Holder) -> None:
        metrics.refuse(Refused.UNREAD if holder is Holder.UNREAD else Refused.UPLOADS)

    budget = ByteBudget(config.limits.max_memory_bytes, count=count)
    metrics.watch_each(
        "memory_bytes",
        "Bytes held for clients",
        "holder",
        {holder.value: partial(budget.held, holder) for holder in Holder},
    )
    return budget
