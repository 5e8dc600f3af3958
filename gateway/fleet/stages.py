"""The stages that the gateway knows: one channel each, watched for as long as it runs.

A stage is `ready` from the moment that its health service says SERVING and it has
described itself, until it stops answering or says otherwise. A request finds
out at once: nobody waits for a stage that is down.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import replace
from types import TracebackType

from antiphon.deployment.schema import Deployment
from antiphon.errors import AntiphonError, FailedPrecondition, InvalidArgument
from antiphon.pipelines.graph import CLIENT
from antiphon.v1 import stage_pb2
from gateway.fleet.accepted import Accepted
from gateway.fleet.lineup import (
    Edges,
    Lineup,
    Member,
    check_agreement,
    client_outputs,
    roles_for,
)
from gateway.fleet.stage import Replica
from gateway.outputs import TOOL_CALLS


class Stages:
    """All stages of the deployment. Use as an async context manager.

    Raises `InvalidArgument` unless every stage has exactly one address.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._by_role = {role: self._stage(role) for role in deployment.stages}
        if not self._by_role:
            raise InvalidArgument("stages: the deployment names none", field="stages")
        self._watchers: list[asyncio.Task[None]] = []
        self._change = asyncio.Event()

    async def __aenter__(self) -> Stages:
        self._watchers = [asyncio.create_task(stage.watch()) for stage in self]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await asyncio.gather(*(stage.channel.close() for stage in self))

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._by_role.values())

    def __getitem__(self, role: str) -> Replica:
        return self._by_role[role]

    @property
    def descriptions(self) -> Mapping[str, stage_pb2.DescribeResponse]:
        """What the stages that are up tell, by role."""
        return {s.role: s.description for s in self if s.description is not None}

    async def describe_now(self) -> dict[str, stage_pb2.DescribeResponse]:
        """What the stages that answer at once tell at this moment, by role."""
        told = await asyncio.gather(*(stage.describe_now() for stage in self))
        return {s.role: each for s, each in zip(self, told, strict=True) if each is not None}

    async def wait_ready(self) -> None:
        """Return when all stages are ready and fit together."""
        while self.fault() is not None:
            await self.wait_changed()

    async def readiness(self) -> AsyncGenerator[bool, None]:
        """Whether all stages are ready and fit together: now, and whenever it changes."""
        while True:
            ready = self.fault() is None
            yield ready
            while ready == (self.fault() is None):
                await self.wait_changed()

    def fault(self) -> AntiphonError | None:
        """Why not every request could be served now; None when all is well."""
        try:
            for stage in self:
                stage.require()
            check_agreement(self.descriptions)
            self._check_roles()
        except AntiphonError as error:
            return error
        return None

    def model_name(self) -> str:
        """What clients ask for. Raises `Unavailable` while nobody has told."""
        if self._deployment.model_name:
            return self._deployment.model_name
        return next(iter(self._described().values())).model

    def edges(self) -> Edges:
        """The pipeline's graph. Raises `Unavailable` while nobody has told."""
        return next(iter(self._described().values())).pipeline_edges

    def accepted(self) -> Accepted:
        """What requests may say besides messages, as the stages last told.

        Raises `Unavailable` while none ever has.
        """
        told = {stage.role: stage.told for stage in self if stage.told is not None}
        edges = next(iter(told.values())).pipeline_edges if told else self.edges()
        return Accepted(edges, told)

    def voices(self) -> tuple[str, ...]:
        """The voices of the stages that are up."""
        return tuple(voice for each in self.descriptions.values() for voice in each.voices)

    def line_up(self, outputs: frozenset[str], *, tool_calls: bool = False) -> Lineup:
        """The stages that make these outputs for a client; all, when none is named.

        Those that make `tool_calls` send them, too, if there are any.

        Raises `Unavailable` when one of them is down, `FailedPrecondition` when
        they do not fit together.
        """
        edges = self.edges()
        outputs = outputs or client_outputs(edges)
        members = []
        for role in roles_for(edges, outputs):
            if role not in self._by_role:
                raise FailedPrecondition(f"the deployment has no stage {role}", stage=role)
            stage = self._by_role[role]
            members.append(Member(role, stage.address, stage.require()))
        check_agreement({member.role: member.description for member in members})
        lineup = Lineup(tuple(members), tuple(edges), outputs)
        if tool_calls and TOOL_CALLS in lineup.makers:
            lineup = replace(lineup, outputs=outputs | {TOOL_CALLS})
        lineup.check_rate()
        return lineup

    def _described(self) -> Mapping[str, stage_pb2.DescribeResponse]:
        descriptions = self.descriptions
        if not descriptions:
            next(iter(self)).require()
        return descriptions

    def _stage(self, role: str) -> Replica:
        addresses = self._deployment.stage(role).addresses
        if len(addresses) != 1:
            raise InvalidArgument(
                f"stages.{role}.addresses: exactly one is needed, got {len(addresses)}",
                field=f"stages.{role}.addresses",
            )
        return Replica(role, addresses[0], self._deployment.gateway, self._on_change)

    def _check_roles(self) -> None:
        """Raise `FailedPrecondition` unless graph and deployment name the same things."""
        edges = self.edges()
        roles = {r for e in edges for r in (e.producer, e.consumer) if r != CLIENT}
        if roles != set(self._by_role):
            raise FailedPrecondition(
                f"the pipeline has the stages {sorted(roles)}, "
                f"the deployment {sorted(self._by_role)}"
            )
        unknown = set(self._deployment.delivery) - {edge.name for edge in edges}
        if unknown:
            raise FailedPrecondition(f"delivery: the pipeline has no edge {sorted(unknown)}")

    async def wait_changed(self) -> None:
        """Return after the next change of any stage."""
        await self._change.wait()

    def _on_change(self) -> None:
        """Wake who waits for a change, and wait for the next one."""
        self._change.set()
        self._change = asyncio.Event()
