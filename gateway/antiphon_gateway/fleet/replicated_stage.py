"""All replicas of one stage, including those that aren't available or have failed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import NamedTuple

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import ErrorCode, Unavailable
from antiphon.transport.mutual_tls import ServiceTls
from antiphon.v1 import stage_pb2
from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint
from antiphon_gateway.fleet.outliers import Outliers
from antiphon_gateway.fleet.picker import Location, PickReason, Pool
from antiphon_gateway.fleet.replica import Replica, ReplicaState
from antiphon_gateway.fleet.replica_watch import ReplicaWatch

log = logging.getLogger("gateway.stages")

RETRY_AFTER_S = 1.0
AT_ONCE = 32
"""How many replicas' channels are opened or closed in one iteration of the event loop. This takes a
few milliseconds.
"""


class Build(NamedTuple):
    """The properties that must be the same for all stages of a session."""

    pipeline: str
    checkpoint_fingerprint: str


class _Standing(NamedTuple):
    """The properties that determine to which pool a replica belongs."""

    described: stage_pb2.DescribeResponse | None
    eligible: bool
    location: Location


class ReplicatedStage:
    """The replicas of `role`. Each replica is monitored from the time it is discovered until it is
    gone and its last session has ended.

    `changed` is called after each change. Its argument is true if a description or the set of
    available replicas has changed, and false if only the load has changed.
    """

    def __init__(
        self,
        role: str,
        config: GatewayConfig,
        changed: Callable[[bool], None],
        tls: ServiceTls | None = None,
    ) -> None:
        self.role = role
        self._tls = tls
        self.told: stage_pb2.DescribeResponse | None = None
        self._config = config
        self._changed = changed
        self._replicas: dict[tuple[str, str], Replica] = {}
        self._leaving: set[Replica] = set()
        self._watches: dict[Replica, asyncio.Task[None]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._pools: dict[Build, Pool[Replica]] = {}
        self._placed: dict[Replica, Build] = {}
        # The properties that determined each replica's pool, and whether any of them have changed.
        self._standing: dict[Replica, _Standing] = {}
        self._replaced = False
        self._boots: dict[Replica, str] = {}
        self.outliers: Outliers[Replica] = Outliers(
            failures=config.health.eject_failures,
            first_s=config.health.eject_s,
            longest_s=config.health.max_eject_s,
        )
        self._timer: asyncio.TimerHandle | None = None
        # False while a report from discovery is being applied, because it may contain many
        # replicas.
        self._settled = True
        # Totals since the start. They count sessions by the reason for choosing their replica,
        # replicas that started to drain, and requests that a replica refused before it had sent any
        # part of the answer.
        self.picks: Counter[PickReason] = Counter()
        self.drains = 0
        self.refusals = Counter({ErrorCode.RESOURCE_EXHAUSTED: 0, ErrorCode.UNAVAILABLE: 0})
        self._draining: set[Replica] = set()

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    # -- state --------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether any replica is available for sessions."""
        return bool(self._pools)

    @property
    def serving(self) -> int:
        """The number of replicas that are available for sessions."""
        return sum(map(len, self._pools.values()))

    @property
    def states(self) -> Counter[ReplicaState]:
        """The number of replicas in each state, including those that discovery no longer
        reports.
        """
        return Counter(each.state for each in (*self, *self._leaving))

    @property
    def address(self) -> str:
        """The address of one of the replicas. It stays the same for as long as that replica exists.
        If there are no replicas, it is empty.
        """
        return next((each.address for each in self), "")

    @property
    def reason(self) -> str:
        """Why no replica is available. If one is available, this is an empty string."""
        if self.ready:
            return ""
        reasons = (each.reason or "it is shutting down after its current sessions" for each in self)
        return next(reasons, "no replica is known")

    @property
    def lost_at(self) -> float:
        """When the latest replica was lost while it was serving, on the clock of `time.monotonic`.
        This is minus infinity if none was.
        """
        return max((each.lost_at for each in self), default=-math.inf)

    @property
    def builds(self) -> tuple[Build, ...]:
        """The builds of the available replicas."""
        return tuple(self._pools)

    def pool(self, build: Build) -> Pool[Replica] | None:
        """Return the available replicas of a build, or None if there are none."""
        return self._pools.get(build)

    @property
    def slots(self) -> int | None:
        """The total number of slots on the available replicas, plus the slots that this gateway
        still holds on other replicas.

        This is 0 if a replica doesn't report its slots, and None if no replica is available.
        """
        if not self._pools:
            return None
        if any(pool.unbounded for pool in self._pools.values()):
            return 0
        held = sum(each.segments for each in self._unplaced())
        return sum(pool.slots for pool in self._pools.values()) + held

    def require(self, build: Build | None = None) -> stage_pb2.DescribeResponse:
        """Return the description of an available replica, if possible with the given build. Raises
        `Unavailable` if there is none.
        """
        pool = self._pools.get(build) if build is not None else None
        pool = pool or next(iter(self._pools.values()), None)
        if pool is not None and (described := pool.first().description) is not None:
            return described
        where = f" at {self.address}" if len(self) == 1 else ""
        every = f", and so are all {len(self)} replicas" if len(self) > 1 else ""
        raise Unavailable(
            f"the stage {self.role}{where} is down{every}: {self.reason}",
            stage=self.role,
            retry_after_s=RETRY_AFTER_S,
        )

    @property
    def reported(self) -> tuple[stage_pb2.StageLoad, ...]:
        """The latest load reports of all replicas, including draining ones."""
        told = (each.reported for each in (*self._leaving, *self))
        # A process is monitored twice if discovery has reported it under a new identity.
        return tuple({load.boot_id or id(load): load for load in told if load is not None}.values())

    @property
    def silent(self) -> tuple[str, ...]:
        """The addresses of ready replicas whose load this gateway can't read.

        Other gateways may be using these replicas. Replicas that aren't ready are left out, because
        they have only just started or are down for every gateway.
        """
        places = (each.endpoint for each in self if each.reported is None)
        return tuple(each.address for each in places if each.state == "ready")

    def _unplaced(self) -> Iterator[Replica]:
        """Return the replicas that accept no new sessions but may still have open ones."""
        if len(self._placed) == len(self._replicas) and not self._leaving:
            return
        for replica in (*self, *self._leaving):
            if replica not in self._placed:
                yield replica

    # -- discovery ----------------------------------------------------------------------------

    def keep(self, endpoints: Collection[Endpoint]) -> None:
        """Apply a report from discovery, which contains all endpoints of this stage."""
        self._settled = False
        try:
            self._take_in(endpoints)
        finally:
            self._settled = True
        self._settle()

    def _take_in(self, endpoints: Collection[Endpoint]) -> None:
        known = {(each.uid, each.address): each for each in endpoints}
        begun = 0
        for identity in self._replicas.keys() - known.keys():
            replica = self._replicas.pop(identity)
            self._leaving.add(replica)
            replica.leave()
            self.release(replica)
        for identity, endpoint in known.items():
            replica_or_none = self._replicas.get(identity)
            if replica_or_none is None:
                replica = Replica(endpoint, self._config, self._update, self._tls)
                self._replicas[identity] = replica
                self._watches[replica] = asyncio.create_task(
                    _after(begun // AT_ONCE, ReplicaWatch(replica, self._config, self._tls).run)
                )
                begun += 1
            elif replica_or_none.endpoint != endpoint:
                replica_or_none.moved(endpoint)

    def release(self, replica: Replica) -> None:
        """Record that a session has left a replica. If the replica is gone and this was its last
        session, monitoring stops.
        """
        if replica.gone and not replica.sessions and replica in self._watches:
            log.info("stage %s at %s is gone", self.role, replica.address)
            turns = len(self._endings) // AT_ONCE
            ending = asyncio.create_task(_after(turns, lambda: self._end(replica)))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def close(self) -> None:
        """Stop monitoring and close all channels."""
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*(self._end(replica) for replica in tuple(self._watches)))
        await asyncio.gather(*self._endings)

    async def _end(self, replica: Replica) -> None:
        watch = self._watches.pop(replica, None)
        self._leaving.discard(replica)
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await replica.close()
        # The end of the monitoring may itself have been reported as a change.
        self._boots.pop(replica, None)
        self._standing.pop(replica, None)
        self._draining.discard(replica)

    # -- outcomes of sessions -----------------------------------------------------------------

    def picked(self, replica: Replica, reason: PickReason) -> int | None:
        """Record that a replica was chosen for a session. If it is a trial session, its number is
        returned.
        """
        self.picks[reason] += 1
        trial = self.outliers.picked(replica)
        if trial is not None:
            self._update(replica)
        return trial

    def succeeded(self, replica: Replica, trial: int | None) -> None:
        """Record that a replica has completed its part of a segment."""
        if self.outliers.succeeded(replica, trial):
            log.info("stage %s at %s has recovered", self.role, replica.address)
            self._update(replica)

    def failed(self, replica: Replica, trial: int | None) -> None:
        """Record that a session has failed on a replica."""
        known = sum(each.takes_sessions for each in self)
        if self.outliers.failed(replica, known, _now(), trial):
            log.warning(
                "sessions of stage %s at %s keep failing: it gets no new sessions",
                self.role,
                replica.address,
            )
            self._set_timer()
            self._update(replica)

    def undecided(self, replica: Replica, trial: int | None) -> None:
        """Record that a session on a replica has ended without a result."""
        if self.outliers.undecided(replica, trial):
            self._update(replica)

    def _set_timer(self) -> None:
        moment = self.outliers.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if moment is None else loop.call_at(moment, self._time_passed, moment)

    def _time_passed(self, moment: float) -> None:
        # A timer may go off slightly early, or its replica may have been forgotten.
        now = max(_now(), moment)
        for replica in self.outliers.pass_time(now):
            self._update(replica)
        self._set_timer()

    def _update(self, replica: Replica) -> None:
        """Handle a change to a replica."""
        if self._boots.get(replica) != replica.boot_id:
            self._boots[replica] = replica.boot_id
            self.outliers.forget(replica)
            self._draining.discard(replica)
        if replica.draining and replica not in self._draining:
            self._draining.add(replica)
            self.drains += 1
        if replica.gone:
            self.outliers.forget(replica)
        self._place(replica)
        if self._settled:
            self._settle()

    def _settle(self) -> None:
        """Handle all changes together. The time this takes grows with the number of replicas."""
        if self.outliers.out:
            for each in self.outliers.let_back([each for each in self if each.takes_sessions]):
                log.info(
                    "stage %s at %s keeps failing, but is used because too few replicas are left",
                    self.role,
                    each.address,
                )
                self._place(each)
        replaced, self._replaced = self._replaced, False
        self._changed(replaced)

    def _place(self, replica: Replica) -> None:
        """If the replica may receive sessions, add it to the pool of its build. Otherwise, remove
        it.
        """
        told = replica.description
        eligible = replica.takes_sessions and not self.outliers.is_out(replica)
        standing = _Standing(told, eligible, replica.location)
        if self._standing.get(replica) == standing:
            return
        self._standing[replica] = standing
        self._replaced = True
        if (before := self._placed.pop(replica, None)) is not None:
            pool = self._pools[before]
            pool.discard(replica)
            if not pool:
                del self._pools[before]
        if told is not None:
            self.told = told
        if told is not None and eligible:
            build = Build(told.pipeline, told.checkpoint_fingerprint)
            if build not in self._pools:
                self._pools[build] = Pool(lambda each: each.load)
            self._pools[build].add(replica, replica.location, told.slots)
            self._placed[replica] = build
        replica.placed = replica in self._placed


async def _after(turns: int, act: Callable[[], Awaitable[None]]) -> None:
    """Call `act` after the given number of event loop iterations."""
    for _ in range(turns):
        await asyncio.sleep(0)
    await act()


def _now() -> float:
    return asyncio.get_running_loop().time()
