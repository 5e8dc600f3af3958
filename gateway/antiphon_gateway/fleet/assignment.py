"""The replicas that serve a session."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from antiphon.errors import ErrorCode
from antiphon.v1 import chunk_pb2
from antiphon_gateway.fleet.picker import Pick
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.fleet.replicated_stage import ReplicatedStage


class Assignment:
    """The replica that was chosen for each role of a session. It is a context manager that is used
    for the duration of the session.

    How the session ends influences the choice of replicas for later sessions.
    """

    def __init__(
        self, picks: Mapping[str, Pick[Replica]], stages: Mapping[str, ReplicatedStage]
    ) -> None:
        self.replicas = {role: pick.key for role, pick in picks.items()}
        self._picks = picks
        self._stages = stages
        # The trial numbers of this session. There is one for each role whose replica is being tried
        # after an ejection.
        self._trials: dict[str, int] = {}

    def __getitem__(self, role: str) -> Replica:
        return self.replicas[role]

    def __enter__(self) -> Assignment:
        for role, (replica, reason) in self._picks.items():
            replica.sessions += 1
            trial = self._stages[role].picked(replica, reason)
            if trial is not None:
                self._trials[role] = trial
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for role, replica in self.replicas.items():
            replica.sessions -= 1
            self._undecided(role)
            self._stages[role].release(replica)

    def should_avoid(self, avoided: Collection[Replica]) -> bool:
        """Return whether any of the replicas is in `avoided` or no longer accepts new sessions. In
        either case, a conversation should move to other replicas.
        """
        return any(each in avoided or not each.takes_sessions for each in self.replicas.values())

    @property
    def leaving(self) -> bool:
        """Whether any of the replicas is shutting down or gone."""
        return any(each.leaving for each in self.replicas.values())

    @contextmanager
    def telling(self, leaving: Callable[[], None]) -> Iterator[None]:
        """Call `leaving` if one of the replicas stops accepting new sessions. It can be called more
        than once.
        """
        for replica in self.replicas.values():
            replica.on_leaving.add(leaving)
        try:
            yield
        finally:
            for replica in self.replicas.values():
                replica.on_leaving.discard(leaving)

    def reported(self, role: str, finish_reason: int) -> None:
        """Record that a stage has completed its part of a segment. If the segment was cancelled,
        this counts neither as a success nor as a failure.
        """
        if finish_reason == chunk_pb2.FINISH_REASON_CANCELLED:
            self._undecided(role)
        else:
            self._stages[role].succeeded(self.replicas[role], self._trials.get(role))

    def _undecided(self, role: str) -> None:
        self._stages[role].undecided(self.replicas[role], self._trials.pop(role, None))

    def refused(self, role: str, code: ErrorCode) -> None:
        """Record that a stage's replica has refused a request. Has no effect if the session doesn't
        use the role.
        """
        if role in self.replicas:
            self._stages[role].refusals[code] += 1

    def failed(self, role: str) -> None:
        """Record that the session has failed on a stage's replica. Has no effect if the session
        doesn't use the role.
        """
        if role in self.replicas:
            self._stages[role].failed(self.replicas[role], self._trials.get(role))
