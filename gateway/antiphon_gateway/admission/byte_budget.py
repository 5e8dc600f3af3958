"""Bytes that the gateway holds for clients, bounded over all of them together.

A lease that needs bytes which are not free takes those of leases that have been silent for longest:
a request body that does not proceed, a fetched URL that stalls, an answer that is not read. So idle
clients cannot keep the budget from active ones.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import ResourceExhausted

SILENT_S = 1.0
"""A lease that has not moved for so long can be evicted."""


class BudgetExceeded(ResourceExhausted):
    """The budget is used up."""


class ByteBudget:
    """A number of bytes with leases. `what` and `setting` are for the error."""

    def __init__(
        self,
        limit_bytes: int,
        what: str,
        setting: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._limit_bytes = limit_bytes
        self._full = f"{what} take all of {setting} ({limit_bytes} bytes)"
        self._leases: OrderedDict[ByteLease, None] = OrderedDict()
        self.held_bytes = 0

    @contextmanager
    def lease(self, on_evict: Callable[[], None], *, of_client: bool = True) -> Iterator[ByteLease]:
        """An empty lease until the block ends. `on_evict` is called when it is evicted.

        `of_client`: its bytes come from a client or go to one.
        """
        lease = ByteLease(self, on_evict, of_client=of_client)
        self._leases[lease] = None
        try:
            yield lease
        finally:
            lease.close()

    def clear(self) -> None:
        """Evict every lease that waits for a client."""
        for lease in list(self._leases):
            if lease.of_client and lease.moved_at < math.inf:
                lease.evict()

    def grow(self, size: int) -> None:
        """Take so many more bytes. Raises `BudgetExceeded` when they are not free."""
        silent_since = self.clock() - SILENT_S
        for lease in list(self._leases):
            if self.held_bytes + size <= self._limit_bytes:
                break
            if lease.moved_at < silent_since:
                lease.evict()
        if self.held_bytes + size > self._limit_bytes:
            raise BudgetExceeded(self._full, retry_after_s=SILENT_S)
        self.held_bytes += size

    def touch(self, lease: ByteLease) -> None:
        """Make it the one that moved last."""
        self._leases.move_to_end(lease)

    def forget(self, lease: ByteLease) -> None:
        """Remove a lease; further calls do nothing."""
        self._leases.pop(lease, None)


class ByteLease:
    """One client's part of a budget."""

    def __init__(
        self, budget: ByteBudget, on_evict: Callable[[], None], *, of_client: bool
    ) -> None:
        self.of_client = of_client
        self._budget = budget
        self._on_evict = on_evict
        self._size = 0
        self.evicted = False
        self.moved_at = self._budget.clock()

    def moved(self, size: int) -> None:
        """The client has sent or read something; the lease has `size` bytes from now on.

        Raises `BudgetExceeded` when they are not free, and after an eviction.
        """
        if self.evicted:
            raise eviction()
        self.moved_at = self._budget.clock()
        self._budget.touch(self)
        self._budget.grow(size - self._size)
        self._size = size

    def keep(self) -> None:
        """The client has done its part: the lease is not evicted any more."""
        self.moved_at = math.inf

    def evict(self) -> None:
        """Give the bytes back and call `on_evict`."""
        self.close()
        self.evicted = True
        self._on_evict()

    def close(self) -> None:
        """Give the bytes back; further calls do nothing."""
        self._budget.held_bytes -= self._size
        self._size = 0
        self._budget.forget(self)


def eviction() -> BudgetExceeded:
    """The error of a client whose lease was evicted."""
    return BudgetExceeded(
        "it stood still and gave way to others; send it again", retry_after_s=SILENT_S
    )


def uploads_of(config: GatewayConfig) -> ByteBudget:
    """The budget of what requests bring: their bodies, the files that they name by URL, and what is
    decoded of both."""
    return ByteBudget(
        config.limits.max_upload_bytes,
        "request bodies, fetched files and what is decoded of them",
        "gateway.limits.max_upload_bytes",
    )
