"""The budget for the memory that the gateway uses on behalf of clients, which is divided by type of
use.

Each type of use is limited to its share of the budget. The shares add up to more than the total, so
that one type can use memory that another does not need. The last eighth is reserved for complete
answers, so that requests and conversations cannot displace output that has already been computed.

If memory runs out, leases are evicted. Those that have been inactive the longest go first, such as
a request body that makes no progress, a fetched URL that stalls, or an answer that is not read.
This prevents idle clients from starving active ones. The oldest spare leases, which hold requests
that are kept for failover, go next. If all of this would not free enough memory, nothing is
evicted.
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
"""A lease can be evicted if it has made no progress for this many seconds."""
SETTING = "gateway.limits.max_memory_bytes"


class Holder(enum.StrEnum):
    """The types of use. The values are their names in metrics."""

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
"""The maximum share of the budget for each type of use."""
ALL_BUT_UNREAD = Fraction(7, 8)

_WHAT = {
    Holder.UPLOADS: "request bodies, fetched files and what is decoded of them",
    Holder.WAITING: "requests that wait for a slot",
    Holder.ANSWERING: "requests that are answered",
    Holder.CONVERSATIONS: "conversations",
    Holder.UNREAD: "unread answers",
}


class BudgetExceeded(ResourceExhausted):
    """Raised if the budget or the share of a type of use is exhausted."""


def share_bytes(config: GatewayConfig, holder: Holder) -> int:
    """Return the maximum number of bytes for a type of use."""
    return int(SHARES[holder] * config.limits.max_memory_bytes)


def _ignore(_: Holder) -> None:
    """Count no refusals."""


def _nothing() -> None:
    """Do nothing at an eviction."""


class ByteBudget:
    """A budget of `limit_bytes` bytes, from which memory is leased. `count` is called for each
    lease that is refused, and for each one that is evicted because its client was inactive.
    """

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
        self.held_bytes = 0
        """The total size of all leases in bytes."""
        self._most = {holder: int(share * limit_bytes) for holder, share in SHARES.items()}
        # The maximum for all types of use together, as it applies to each of them.
        self._most_together = dict.fromkeys(Holder, int(ALL_BUT_UNREAD * limit_bytes))
        self._most_together[Holder.UNREAD] = limit_bytes
        self._held = dict.fromkeys(Holder, 0)
        self._leases: OrderedDict[ByteLease, None] = OrderedDict()

    def held(self, holder: Holder) -> int:
        """Return the total size of the leases of one type in bytes."""
        return self._held[holder]

    def lease(
        self, holder: Holder, on_evict: Callable[[], None] = _nothing, *, of_client: bool = True
    ) -> ByteLease:
        """Return an empty lease. The caller must close it. If it is evicted, `on_evict` is called.

        `of_client` states whether the data is received from a client or sent to one.
        """
        lease = ByteLease(self, holder, on_evict, of_client=of_client)
        self._leases[lease] = None
        return lease

    def clear(self) -> None:
        """Evict all uploads that are waiting for their client."""
        for lease in list(self._leases):
            if lease.holder is Holder.UPLOADS and lease.of_client and lease.moved_at < math.inf:
                lease.evict()

    def missing(self, holder: Holder, size: int) -> int:
        """Return how many bytes a type of use lacks for `size` additional bytes. The result is 0 or
        less if they are all available.
        """
        return max(self._missing(holder, size))

    def make_room(self, holder: Holder, size: int) -> None:
        """Evict leases until `size` additional bytes are available to a type of use.

        Raises `BudgetExceeded` if this cannot free enough memory, in which case nothing is evicted.
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
        """Record that the size of a lease has changed by `more` bytes, which may be negative."""
        self._held[holder] += more
        self.held_bytes += more

    def touch(self, lease: ByteLease) -> None:
        """Record that a lease has made progress."""
        self._leases.move_to_end(lease)

    def forget(self, lease: ByteLease) -> None:
        """Remove a lease. Calling this again has no effect."""
        self._leases.pop(lease, None)

    def _missing(self, holder: Holder, size: int) -> tuple[int, int]:
        """Return how many bytes are lacking in the share of a type of use, and in the budget as a
        whole.
        """
        own = self._held[holder] + size - self._most[holder]
        return own, self.held_bytes + size - self._most_together[holder]

    def _evictable(self) -> Iterator[ByteLease]:
        """Yield the leases that can be evicted, in the order of eviction."""
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
    """Memory that is leased from a budget for one client. Close the lease, or use it as a context
    manager.
    """

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
        """Record that the client has made progress, and set the size of the lease.

        Raises `BudgetExceeded` if memory runs out or if the lease has been evicted.
        """
        if self.evicted:
            raise eviction()
        self.moved_at = self._budget.clock()
        self._budget.touch(self)
        self.take(size_bytes)

    def take(self, size_bytes: int) -> None:
        """Set the lease's size. Raises `BudgetExceeded` if memory runs out."""
        more = size_bytes - self.size_bytes
        if more > 0:
            try:
                self._budget.make_room(self.holder, more)
            except BudgetExceeded:
                self._budget.count(self.holder)
                raise
        self.resize(size_bytes)

    def resize(self, size_bytes: int) -> None:
        """Set the size of the lease, even if this exceeds the budget. This does nothing once the
        lease is closed.
        """
        if not self.closed:
            self._budget.change(self.holder, size_bytes - self.size_bytes)
            self.size_bytes = size_bytes

    def move(self, holder: Holder) -> None:
        """Count the lease as a different type of use."""
        size_bytes = self.size_bytes
        self.resize(0)
        self.holder = holder
        self.resize(size_bytes)

    def keep(self) -> None:
        """Exempt the lease from eviction, because it is not waiting for a client."""
        self.moved_at = math.inf
        self.is_spare = False

    def spare(self, on_evict: Callable[[], None]) -> None:
        """Mark the lease as spare, so that it can be evicted when memory is needed."""
        self.keep()
        self._on_evict = on_evict
        self.is_spare = not self.closed

    def evict(self) -> None:
        """Release the memory and call `on_evict`."""
        if not self.is_spare:
            self._budget.count(self.holder)
        on_evict = self._on_evict
        self.close()
        self.evicted = True
        on_evict()

    def close(self) -> None:
        """Release the memory. Calling this again has no effect."""
        self.resize(0)
        self.closed = True
        # Otherwise, the lease and its owner would form a reference cycle.
        self._on_evict = _nothing
        self._budget.forget(self)


def eviction() -> BudgetExceeded:
    """Return the error for a client whose lease was evicted."""
    return BudgetExceeded(
        "it stood still and gave way to others; send it again", retry_after_s=SILENT_S
    )


def memory_of(config: GatewayConfig, metrics: Metrics) -> ByteBudget:
    """Return the budget of a gateway, with its metrics."""

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
