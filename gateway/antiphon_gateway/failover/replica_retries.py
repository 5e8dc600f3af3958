"""Retries on other replicas after a refusal."""

from __future__ import annotations

from collections.abc import Collection

from antiphon.errors import AntiphonError, ErrorCode, ResourceExhausted, Unavailable
from antiphon_gateway.admission.reservation import Reservation
from antiphon_gateway.fleet.assignment import Assignment
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.sessions.call_segment import CallSegment

MOST = 3
"""The maximum number of replicas that a request tries before it waits for a slot or fails. If these
replicas refuse, probably all others would refuse as well. In addition, a request that has damaged a
stage must not damage all of them.
"""

REFUSALS = frozenset({ErrorCode.RESOURCE_EXHAUSTED, ErrorCode.UNAVAILABLE})


class ReplicaRetries:
    """The retries of one request before any part of its answer exists. The replicas in `avoided`
    have refused the request.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.avoided: set[Replica] = set()

    def may_be_taken(
        self,
        error: AntiphonError,
        assignment: Assignment,
        codes: Collection[ErrorCode] = REFUSALS,
    ) -> bool:
        """Return whether to try other replicas immediately after this error of a session. This is
        only the case for the given error codes.
        """
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
        """Return whether a request that a stage has refused is sent again, either to other replicas
        immediately or after it has waited for a slot.
        """
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
        """Return whether there is another replica for one of the replicas in a session."""
        return len(self.avoided) < MOST and any(
            self._fleet.has_others(assignment.replicas, {*self.avoided, each})
            for each in assignment.replicas.values()
        )

    def forget(self) -> None:
        """Forget the refusals, because time has passed and these replicas may have free slots."""
        self.avoided.clear()
