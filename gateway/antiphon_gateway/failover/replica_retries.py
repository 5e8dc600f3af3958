"""Retries a refused request on other replicas."""

from __future__ import annotations

from collections.abc import Collection

from antiphon.errors import AntiphonError, ErrorCode, ResourceExhausted, Unavailable
from antiphon_gateway.admission.reservation import Reservation
from antiphon_gateway.fleet.assignment import Assignment
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.sessions.call_segment import CallSegment

MOST = 3
"""The maximum number of replicas that a request tries before it waits for a slot or fails. If this
many replicas have refused it, the others would probably do the same. The limit also keeps a request
that crashes a stage from crashing every replica.
"""

REFUSALS = frozenset({ErrorCode.RESOURCE_EXHAUSTED, ErrorCode.UNAVAILABLE})


class ReplicaRetries:
    """The retries of a request that hasn't produced any output yet. `avoided` contains the replicas
    that have refused it.
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
        """Return whether to try other replicas right away after this error. This depends on its
        error code.
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
        """Return whether to send a refused request again. It may be sent to other replicas right
        away or have to wait for a slot first.
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
        """Return whether there is another replica that the session could use for at least one of
        its stages.
        """
        return len(self.avoided) < MOST and any(
            self._fleet.has_others(assignment.replicas, {*self.avoided, each})
            for each in assignment.replicas.values()
        )

    def forget(self) -> None:
        """Forget all refusals, because these replicas may have free slots by now."""
        self.avoided.clear()
