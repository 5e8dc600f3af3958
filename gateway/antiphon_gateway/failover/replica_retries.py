"""Retries on another replica after a refusal."""

from __future__ import annotations

from collections.abc import Collection

from antiphon.errors import AntiphonError, ErrorCode, ResourceExhausted, Unavailable
from antiphon_gateway.admission.reservation import Reservation
from antiphon_gateway.fleet.assignment import Assignment
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.sessions.call_segment import CallSegment

MOST = 3
"""Replicas that a request goes on to before it waits for a slot, or fails: where these refuse, it
is likely that all would, and what has harmed a stage should not harm them all."""

REFUSALS = frozenset({ErrorCode.RESOURCE_EXHAUSTED, ErrorCode.UNAVAILABLE})


class ReplicaRetries:
    """Of one request, for as long as nothing of its answer was there: `avoided` have refused it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.avoided: set[Replica] = set()

    def may_be_taken(
        self,
        error: AntiphonError,
        assignment: Assignment,
        codes: Collection[ErrorCode] = REFUSALS,
    ) -> bool:
        """Whether to go on to other replicas at once after this error of a session's, if it is
        one of those."""
        replica = assignment.replicas.get(error.stage)
        if replica is None or error.code not in codes:
            return False
        self.avoided.add(replica)
        return len(self.avoided) <= MOST and self._fleet.has_others(
            assignment.replicas, self.avoided
        )

    def go_on(
        self, error: ResourceExhausted | Unavailable, segment: CallSegment, place: Reservation
    ) -> bool:
        """Whether a request that a stage has refused is asked again: of other replicas at once, or
        when it has waited for a slot."""
        if place.is_open and isinstance(error, ResourceExhausted):
            return False
        segment.assignment.refused(error.stage, error.code)
        if self.may_be_taken(error, segment.assignment):
            return True
        if isinstance(error, ResourceExhausted):
            place.refused(error)
            self.forget()
            return True
        return False

    def there_are(self, assignment: Assignment) -> bool:
        """Whether there is another replica for one of a session's."""
        return len(self.avoided) < MOST and any(
            self._fleet.has_others(assignment.replicas, {*self.avoided, each})
            for each in assignment.replicas.values()
        )

    def forget(self) -> None:
        """Time has passed: they may have room."""
        self.avoided.clear()
