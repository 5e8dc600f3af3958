"""Uses the gateway's load balancer with replicas that are identified by numbers."""

from __future__ import annotations

from collections.abc import Callable

from antiphon_gateway.fleet.picker import Location, Pool


def pool_of(replicas: int, slots: int, load: Callable[[int], float]) -> Pool[int]:
    """Return a pool of replicas. `load` returns the number of a replica's slots that appear to be
    in use.
    """
    pool = Pool[int](lambda number: load(number) / slots)
    for number in range(replicas):
        pool.add(number, Location(), slots)
    return pool
