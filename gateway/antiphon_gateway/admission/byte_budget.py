"""The budget for the memory that the gateway uses on behalf of clients. It is split among several
types of use.

Each type of use is limited to its share of the budget. The shares add up to more than the total, so
that one type can use memory that another doesn't need. The last eighth is reserved for complete
answers. This way, requests and conversations can't displace output that has already been computed.

If memory runs out, leases are evicted. Those that have been inactive the longest go first. Examples
are a request body that isn't making progress, a fetched URL that has stalled, or an answer that
isn't being read. As a result, idle clients can't starve active ones. Spare leases, which hold
requests that are kept for failover, are evicted next, starting with the oldest. If even this
wouldn't free enough memory, nothing is evicted.
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
"""The number of seconds without progress after which a lease can be evicted."""
SETTING = "gateway.limits.max_memory_bytes"


class Holder(enum.StrEnum):
    """The types of use. Each value is the name that is used in metrics."""

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
"""The maximum share of the budget that each type of use can take up."""
ALL_BUT_UNREAD = Fraction(7, 8)

_WHAT = {
    Holder.UPLOADS: "request bodies and their attachments",
    Holder.WAITING: "requests that wait for a slot",
    Holder.ANSWERING: "running requests",
    Holder.CONVERSATIONS: "conversations",
    Holder.UNREAD: "unread answers",
}


class BudgetExceeded(ResourceExhausted):
    """Raised if there isn't enough memory left in the budget, or in the share of this
    type of use.
    """


def share_bytes(config: GatewayConfig, holder: Holder) -> int:
    """Return the maximum number of bytes for a type of use."""
    return int(SHARES[holder] * config.limits.max_memory_bytes)


def _ignore(_: Holder) -> None:
    """Don't count anything. This is the default for budgets without metrics."""


def _nothing() -> None:
    """Do nothing on eviction."""


class ByteBudget:
    """A budget of `limit_bytes` bytes. Memory is leased from it. `count` is called whenever a lease
    is refused, and whenever a lease is evicted because its client was inactive.
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
        """Return an empty lease, which the caller must close. If it is evicted, `on_evict` is
        called.

        `of_client` states whether the lease is for data that is received from or sent to a client.
        """
        lease = ByteLease(self, holder, on_evict, of_client=of_client)
        self._leases[lease] = None
        return lease

    def clear(self) -> None:
        """Evict all uploads that are currently waiting for their client."""
        for lease in list(self._leases):
            if lease.holder is Holder.UPLOADS and lease.of_client and lease.moved_at < math.inf:
                lease.evict()

    def missing(self, holder: Holder, size: int) -> int:
        """Return how many bytes a type of use would be short of if it needed `size` more bytes. The
        result is 0 or less if there is enough memory.
        """
        return max(self._missing(holder, size))

    def make_room(self, holder: Holder, size: int) -> None:
        """Evict leases until there are `size` more bytes for a type of use.

        Raises `BudgetExceeded` if that isn't possible, in which case nothing is evicted.
        """
        own, all_bytes = self._missing(holder, size)
        if own <= 0 and all_bytes <= 0:
            return
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
        """Record that a lease has grown by `more` bytes. The number can be negative."""
        self._held[holder] += more
        self.held_bytes += more

    def touch(self, lease: ByteLease) -> None:
        """Record that a lease has made progress."""
        self._leases.move_to_end(lease)

    def forget(self, lease: ByteLease) -> None:
        """Remove a lease. Calling this again has no effect."""
        self._leases.pop(lease, None)

    def _missing(self, holder: Holder, size: int) -> tuple[int, int]:
        """Return how many bytes are missing from a type's share and from the budget as a whole."""
        own = self._held[holder] + size - self._most[holder]
        return own, self.held_bytes + size - self._most_together[holder]

    def _evictable(self) -> Iterator[ByteLease]:
        """Yield the leases that can be evicted, in the order in which they would be evicted."""
        silent_since = self.clock() - SILENT_S
        yield from (each for each in self._leases if each.moved_at < silent_since)
        yield from (each for each in self._leases if each.is_spare)

    def _full(self, holder: Holder, own: int) -> str:
        if own > 0:
            return (
                f"{_WHAT[holder]} have used up their share of {SETTING} ({self._most[holder]} "
                f"of {self._limit_bytes} bytes)"
            )
        return f"requests and conversations have used up {SETTING} ({self._limit_bytes} bytes)"


class ByteLease:
    """Memory that is leased from a budget for one client. Close the lease or use it as a context
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
        """Record that the client has made progress and set the size of the lease.

        Raises `BudgetExceeded` if there isn't enough memory or if the lease has been evicted.
        """
        if self.evicted:
            raise eviction()
        self.moved_at = self._budget.clock()
        self._budget.touch(self)
        self.take(size_bytes)

    def take(self, size_bytes: int) -> None:
        """Set the size of the lease. Raises `BudgetExceeded` if there isn't enough memory."""
        more = size_bytes - self.size_bytes
        if more > 0:
            try:
                self._budget.make_room(self.holder, more)
            except BudgetExceeded:
                self._budget.count(self.holder)
                raise
        self.resize(size_bytes)

    def resize(self, size_bytes: int) -> None:
        """Set the size of the lease, even if this exceeds the budget. Has no effect once the lease
        is closed.
        """
        if not self.closed:
            self._budget.change(self.holder, size_bytes - self.size_bytes)
            self.size_bytes = size_bytes

    def move(self, holder: Holder) -> None:
        """Count the lease towards a different type of use."""
        size_bytes = self.size_bytes
        self.resize(0)
        self.holder = holder
        self.resize(size_bytes)

    def keep(self) -> None:
        """Protect the lease from eviction, because it isn't waiting for a client."""
        self.moved_at = math.inf
        self.is_spare = False

    def spare(self, on_evict: Callable[[], None]) -> None:
        """Mark the lease as spare, which means that it can be evicted as soon as memory
        is needed.
        """
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
        """Release the memory. This can be called more than once."""
        self.resize(0)
        self.closed = True
        # Break the reference cycle between the lease and its owner.
        self._on_evict = _nothing
        self._budget.forget(self)


def eviction() -> BudgetExceeded:
    """Return the error for a client whose lease was evicted."""
    return BudgetExceeded(
        "it was idle, and its memory was needed for other requests; send it again",
        retry_after_s=SILENT_S,
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
