"""Keeps track of all known replicas of all stages and chooses replicas for sessions.

Discovery reports which replicas exist, and each replica reports whether it is serving. If a stage
has no replica that accepts sessions, no session can be started (`awaited_return.py` waits for one
that has just been lost). All stages of a session must have the same build, which is defined by the
pipeline and the checkpoint. This makes it possible to run two builds at the same time during an
upgrade.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType

from antiphon.deployment.schema import Deployment
from antiphon.errors import AntiphonError, FailedPrecondition, InvalidArgument, Unavailable
from antiphon.pipelines.graph import CLIENT
from antiphon.transport.mutual_tls import GATEWAY, service_tls
from antiphon.v1 import stage_pb2
from antiphon_gateway.changes import ChangeSignal
from antiphon_gateway.fleet.accepted import Accepted
from antiphon_gateway.fleet.assignment import Assignment
from antiphon_gateway.fleet.discovery.chosen import discovery_of
from antiphon_gateway.fleet.discovery.following import follow
from antiphon_gateway.fleet.discovery.replica_endpoint import Discovery, Endpoint
from antiphon_gateway.fleet.lineup import (
    Edges,
    Lineup,
    Member,
    check_agreement,
    client_outputs,
    roles_for,
)
from antiphon_gateway.fleet.names import names_of
from antiphon_gateway.fleet.picker import Location, Pick, PickReason, Pool
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.fleet.replicated_stage import RETRY_AFTER_S, Build, ReplicatedStage
from antiphon_gateway.outputs import TOOL_CALLS

NONE_AVOIDED: frozenset[Replica] = frozenset()
ALIKE, STICKY = 1e9, 1e18
"""Weights for choosing a build. They favor the build that a request was prepared for, and the build
of the preferred replicas even more so.
"""
MAX_LINEUPS = 1024
"""The maximum number of cached line-ups. The cache is cleared when the replicas change. In a large
fleet, there may be more line-ups, some of which are then created repeatedly.
"""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A build that can produce the requested outputs. `pools` contains a non-empty pool for each
    role, upstream first.
    """

    build: Build
    pools: Mapping[str, Pool[Replica]]
    edges: Edges
    outputs: frozenset[str]

    def has_besides(self, avoided: Collection[Replica]) -> bool:
        """Return whether every stage has a replica that isn't in `avoided`."""
        return all(pool.has_besides(avoided) for pool in self.pools.values())


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The replica chosen for each role, upstream first, and the outputs that they produce."""

    picks: Mapping[str, Pick[Replica]]
    edges: Edges
    outputs: frozenset[str]


@dataclass(slots=True)
class _Derived:
    """Values that are derived from the available replicas. They are discarded whenever the replicas
    change.
    """

    descriptions: Mapping[str, stage_pb2.DescribeResponse] | None = None
    accepted: Accepted | None = None
    voices: tuple[str, ...] | None = None
    builds: tuple[Build, ...] | None = None
    candidates: dict[frozenset[str], tuple[_Candidate, ...]] = field(default_factory=dict)
    by_outputs: dict[tuple[frozenset[str], bool], Lineup] = field(default_factory=dict)
    by_replicas: dict[tuple[object, ...], Lineup] = field(default_factory=dict)


class Fleet:
    """The stages of a deployment, by role. It is used as an async context manager.

    Raises `InvalidArgument` if the deployment has no stages or if a stage has no address.
    """

    def __init__(
        self,
        deployment: Deployment,
        discovery: Discovery | None = None,
        generator: random.Random | None = None,
    ) -> None:
        if not deployment.stages:
            raise InvalidArgument("stages: the deployment names none", field="stages")
        self._deployment = deployment
        self.names = names_of(deployment.gateway)
        self.discovery = discovery or discovery_of(deployment)
        self._generator = generator or random.Random()
        tls = service_tls(deployment.mutual_tls, GATEWAY)
        self._by_role = {
            role: ReplicatedStage(role, deployment.gateway, self._on_change, tls)
            for role in deployment.stages
        }
        # The latest endpoints from discovery, and whether there has been a report.
        self.endpoints: Collection[Endpoint] = ()
        self.discovered = False
        self._discovering: asyncio.Task[None] | None = None
        self.changes = ChangeSignal()
        self._derived = _Derived()
        self.slots: Mapping[str, int] = {}
        """The total number of slots on the available replicas, by role. The number is 0 if a
        replica doesn't report its slots.
        """
        self._resized: Callable[[Mapping[str, int]], None] = lambda slots: None

    async def __aenter__(self) -> Fleet:
        following = follow(self.discovery, self._take, self._deployment.gateway.health.reconnect_s)
        self._discovering = asyncio.create_task(following)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._discovering is not None:
            self._discovering.cancel()
            await asyncio.gather(self._discovering, return_exceptions=True)
        await asyncio.gather(*(stage.close() for stage in self))

    def __iter__(self) -> Iterator[ReplicatedStage]:
        return iter(self._by_role.values())

    def __getitem__(self, role: str) -> ReplicatedStage:
        return self._by_role[role]

    # -- state --------------------------------------------------------------------------------

    @property
    def descriptions(self) -> Mapping[str, stage_pb2.DescribeResponse]:
        """The descriptions of the running stages, by role. If there is a build that covers all
        stages, all descriptions are from that build.
        """
        if self._derived.descriptions is None:
            build = self._build()
            told = {stage.role: stage.require(build) for stage in self if stage.ready}
            self._derived.descriptions = told
        return self._derived.descriptions

    def on_resize(self, resized: Callable[[Mapping[str, int]], None]) -> None:
        """Set the function that is called when `slots` changes."""
        self._resized = resized

    async def wait_ready(self) -> None:
        """Wait until all stages are ready and compatible."""
        while self.fault() is not None:
            await self.wait_changed()

    async def readiness(self) -> AsyncGenerator[bool, None]:
        """Yield whether all stages are ready and compatible, first right away and then after each
        change.
        """
        while True:
            ready = self.fault() is None
            yield ready
            while ready == (self.fault() is None):
                await self.wait_changed()

    def lost_at(self, role: str) -> float:
        """Return when the latest replica of a stage was lost, or minus infinity if the role isn't
        known. See `ReplicatedStage.lost_at`.
        """
        stage = self._by_role.get(role)
        return stage.lost_at if stage is not None else -math.inf

    async def wait_changed(self) -> None:
        """Wait for the next change of any replica."""
        await self.changes.next.wait()

    def fault(self) -> AntiphonError | None:
        """Return why some requests can't be served, or None if all of them can."""
        try:
            for stage in self:
                stage.require()
            check_agreement(self.descriptions)
            self._check_roles()
        except AntiphonError as error:
            return error
        return None

    def model_name(self) -> str:
        """Return the name under which clients know the model. Raises `Unavailable` if no stage has
        reported it yet.
        """
        if self._deployment.model_name:
            return self._deployment.model_name
        return next(iter(self._described().values())).model

    def edges(self) -> Edges:
        """Return the edges of the pipeline. Raises `Unavailable` if no stage has reported them
        yet.
        """
        return next(iter(self._described().values())).pipeline_edges

    def accepted(self) -> Accepted:
        """Return the sampling settings and options that can be set in requests, as last reported by
        the stages.

        Raises `Unavailable` if no stage has reported yet.
        """
        if self._derived.accepted is None:
            self._derived.accepted = self._accepted()
        return self._derived.accepted

    def _accepted(self) -> Accepted:
        up = self.descriptions
        last = {stage.role: up.get(stage.role, stage.told) for stage in self}
        told = {role: each for role, each in last.items() if each is not None}
        edges = next(iter(told.values())).pipeline_edges if told else self.edges()
        return Accepted(edges, told)

    def voices(self) -> tuple[str, ...]:
        """Return the voices of the stages that are running."""
        if self._derived.voices is None:
            told = self.descriptions.values()
            self._derived.voices = tuple(voice for each in told for voice in each.voices)
        return self._derived.voices

    # -- choosing replicas --------------------------------------------------------------------

    def line_up(self, outputs: frozenset[str], *, tool_calls: bool = False) -> Lineup:
        """Return stages that produce the given outputs for a client. If `outputs` is empty, they
        produce all outputs.

        If `tool_calls` is true, the session also sends function calls, provided that there is a
        stage that produces them. If several builds are running, one of them is drawn at random,
        weighted by the number of slots.

        Raises `Unavailable` if a required stage is down, and `FailedPrecondition` if the stages are
        incompatible.
        """
        asked = (outputs, tool_calls)
        made = self._derived.by_outputs.get(asked) if len(self._builds()) < 2 else None
        if made is None:
            made = self._lineup(self._choose(outputs), tool_calls=tool_calls)
            self._derived.by_outputs[asked] = made
        return made

    def assign(
        self,
        outputs: frozenset[str],
        *,
        tool_calls: bool = False,
        avoided: Collection[Replica] = NONE_AVOIDED,
        preferred: Assignment | None = None,
        like: Lineup | None = None,
    ) -> tuple[Lineup, Assignment]:
        """Choose the replicas for a session that is about to start and return them with their
        line-up.

        Replicas in `avoided` are never chosen. Replicas in `preferred` are kept if they have a free
        slot. For all other stages, replicas with the same build as `like` are preferred. Raises the
        same errors as `line_up`.
        """
        chosen = self._choose(outputs, avoided, preferred, like)
        replicas = (pick.key for pick in chosen.picks.values())
        known, asked = self._derived.by_replicas, (chosen.outputs, tool_calls, *replicas)
        made = known.get(asked)
        if made is None:
            made = self._lineup(chosen, tool_calls=tool_calls)
            if len(known) >= MAX_LINEUPS:
                known.clear()
            known[asked] = made
        return made, Assignment(chosen.picks, self._by_role)

    def _lineup(self, chosen: _Chosen, *, tool_calls: bool) -> Lineup:
        """Create the line-up. Raises `FailedPrecondition` if the stages are incompatible."""
        members = []
        for role, (replica, _) in chosen.picks.items():
            assert replica.description is not None, "only those that serve are chosen"
            members.append(Member(role, replica.address, replica.description))
        check_agreement({member.role: member.description for member in members})
        pacing = self._deployment.gateway.pacing
        lineup = Lineup(tuple(members), tuple(chosen.edges), chosen.outputs, self.names, pacing)
        if tool_calls and TOOL_CALLS in lineup.makers:
            lineup = replace(lineup, outputs=lineup.outputs | {TOOL_CALLS})
        lineup.check_rate()
        return lineup

    def has_others(self, roles: Iterable[str], avoided: Collection[Replica] = NONE_AVOIDED) -> bool:
        """Return whether there can be a session on these stages without the replicas in
        `avoided`.
        """
        needed = tuple(roles)
        return any(self._complete(build, needed, avoided) for build in self._builds())

    def _choose(
        self,
        outputs: frozenset[str],
        avoided: Collection[Replica] = NONE_AVOIDED,
        preferred: Assignment | None = None,
        like: Lineup | None = None,
    ) -> _Chosen:
        """Choose a replica for each role, upstream first. Replicas that are close to those already
        chosen are preferred.
        """
        found = self._candidates(outputs)
        if avoided:
            found = tuple(each for each in found if each.has_besides(avoided))
        if not found:
            raise self._why_not(outputs)
        chosen = found[0]
        if len(found) > 1:
            weights = [self._weight(each, preferred, like) for each in found]
            (chosen,) = self._generator.choices(found, weights)
        picks: dict[str, Pick[Replica]] = {}
        near: list[Location] = []
        detours = {each.role for each in avoided}
        for role, pool in chosen.pools.items():
            kept = preferred.replicas.get(role) if preferred is not None else None
            pick: Pick[Replica] | None
            if kept is None or kept not in pool or kept in avoided or kept.is_full:
                pick = pool.pick(self._generator, near, avoided)
                assert pick is not None, "a complete build has a replica that is not to be avoided"
                if role in detours:
                    pick = Pick(pick.key, PickReason.DETOUR)
            else:
                pick = Pick(kept, PickReason.STICKY)
            picks[role] = pick
            near.append(pick.key.location)
        return _Chosen(picks, chosen.edges, chosen.outputs)

    def _candidates(self, outputs: frozenset[str]) -> tuple[_Candidate, ...]:
        """Return the builds that can produce these outputs."""
        found = self._derived.candidates.get(outputs)
        if found is None:
            made = (self._candidate(build, outputs) for build in self._builds())
            found = tuple(each for each in made if each is not None)
            self._derived.candidates[outputs] = found
        return found

    def _candidate(self, build: Build, outputs: frozenset[str]) -> _Candidate | None:
        """Return the build as a candidate, or None if it doesn't have one of the outputs or a
        required stage.
        """
        covered = next(stage for stage in self if stage.pool(build) is not None)
        edges = covered.require(build).pipeline_edges
        wanted = outputs or client_outputs(edges)
        try:
            roles = roles_for(edges, wanted)
        except AntiphonError:
            return None
        pools: dict[str, Pool[Replica]] = {}
        for role in roles:
            stage = self._by_role.get(role)
            pool = stage.pool(build) if stage is not None else None
            if pool is None:
                return None
            pools[role] = pool
        return _Candidate(build, pools, edges, wanted)

    def _weight(
        self, candidate: _Candidate, preferred: Assignment | None, like: Lineup | None
    ) -> float:
        """Return the weight of a build when one is drawn. It depends on the number of slots and on
        whether the build matches another assignment or line-up.
        """
        weight = 1.0 if preferred is None else self._kept(candidate.build, preferred)
        weight *= 1.0 if like is None or like.build != candidate.build else ALIKE
        return weight * min(map(_size, candidate.pools.values()))

    def _kept(self, build: Build, preferred: Assignment) -> float:
        """Return the factor by which a build is favored if it still has replicas of another
        assignment.
        """
        pools = ((self._by_role[r].pool(build), each) for r, each in preferred.replicas.items())
        return STICKY if any(pool is not None and each in pool for pool, each in pools) else 1.0

    def _builds(self) -> tuple[Build, ...]:
        """Return all builds that have an available replica."""
        if self._derived.builds is None:
            builds = dict.fromkeys(build for stage in self for build in stage.builds)
            self._derived.builds = tuple(builds)
        return self._derived.builds

    def _build(self) -> Build | None:
        """Return the build that covers the most stages. If there are several, the one with the most
        slots is returned.
        """

        def rank(build: Build) -> tuple[int, int]:
            pools = [pool for stage in self if (pool := stage.pool(build)) is not None]
            return len(pools), sum(map(_size, pools))

        return max(self._builds(), key=rank, default=None)

    def _complete(self, build: Build, roles: Iterable[str], avoided: Collection[Replica]) -> bool:
        """Return whether each of these stages has a replica of this build that isn't in
        `avoided`.
        """
        for role in roles:
            stage = self._by_role.get(role)
            pool = stage.pool(build) if stage is not None else None
            if pool is None or not pool.has_besides(avoided):
                return False
        return True

    def _why_not(self, outputs: frozenset[str]) -> AntiphonError:
        """Return the reason why there is no line-up for these outputs."""
        try:
            edges = self.edges()
            roles = roles_for(edges, outputs or client_outputs(edges), self.model_name())
            build = self._build()
            for role in roles:
                if role not in self._by_role:
                    raise FailedPrecondition(f"the deployment has no stage {role}", stage=role)
                self._by_role[role].require()
            check_agreement({role: self._by_role[role].require(build) for role in roles})
        except AntiphonError as error:
            return error
        return Unavailable(
            "all replicas that support this request have rejected it", retry_after_s=RETRY_AFTER_S
        )

    # -- updates ------------------------------------------------------------------------------

    def _take(self, endpoints: Collection[Endpoint]) -> None:
        """Apply a report from discovery, which contains all endpoints."""
        self.endpoints, self.discovered = endpoints, True
        by_role: dict[str, list[Endpoint]] = {role: [] for role in self._by_role}
        for endpoint in endpoints:
            if endpoint.role in by_role:
                by_role[endpoint.role].append(endpoint)
        for role, found in by_role.items():
            self._by_role[role].keep(found)

    def _on_change(self, replaced: bool = True) -> None:
        """Wake all waiting tasks and report a change in the number of slots. If replicas were
        `replaced`, which includes changes to their descriptions, all derived values are discarded.
        """
        if replaced:
            self._derived = _Derived()
        self.changes.tell()
        slots = {**self.slots, **{s.role: n for s in self if (n := s.slots) is not None}}
        if slots != self.slots:
            self.slots = slots
            self._resized(slots)

    def _described(self) -> Mapping[str, stage_pb2.DescribeResponse]:
        descriptions = self.descriptions
        if not descriptions:
            next(iter(self)).require()
        return descriptions

    def _check_roles(self) -> None:
        """Raise `FailedPrecondition` if the deployment and the pipeline don't have the same stages
        or if `delivery` names an edge that doesn't exist.
        """
        edges = self.edges()
        roles = {r for e in edges for r in (e.producer, e.consumer) if r != CLIENT}
        if roles != set(self._by_role):
            raise FailedPrecondition(
                f"the pipeline has the stages {sorted(roles)}, but the deployment has "
                f"{sorted(self._by_role)}"
            )
        unknown = set(self._deployment.delivery) - {edge.name for edge in edges}
        if unknown:
            raise FailedPrecondition(f"delivery: the pipeline has no edge {sorted(unknown)}")


def _size(pool: Pool[Replica]) -> int:
    """Return the number of slots. If a replica doesn't report its slots, the number of replicas is
    returned instead.
    """
    return len(pool) if pool.unbounded else pool.slots
