"""The replicas of one session."""

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
    """The replica of each role, from the choice to the session's end: the context of the session.

    The result of the session is evidence for the choice of later sessions.
    """

    def __init__(
        self, picks: Mapping[str, Pick[Replica]], stages: Mapping[str, ReplicatedStage]
    ) -> None:
        self.replicas = {role: pick.key for role, pick in picks.items()}
        self._picks = picks
        self._stages = stages
        # Of those roles whose replica this session tries: its number there.
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
        """Whether one of them is to be avoided, or to get nothing new: a conversation then goes on
        elsewhere."""
        return any(each in avoided or not each.takes_sessions for each in self.replicas.values())

    @property
    def leaving(self) -> bool:
        """Whether one of them will not be back."""
        return any(each.leaving for each in self.replicas.values())

    @contextmanager
    def telling(self, leaving: Callable[[], None]) -> Iterator[None]:
        """Have this called, perhaps more than once, when one of them is to get nothing new."""
        for replica in self.replicas.values():
            replica.on_leaving.add(leaving)
        try:
            yield
        finally:
            for replica in self.replicas.values():
                replica.on_leaving.discard(leaving)

    def reported(self, role: str, finish_reason: int) -> None:
        """Record that a stage has completed its part of a segment. A canceled segment is no
        evidence."""
        if finish_reason == chunk_pb2.FINISH_REASON_CANCELLED:
            self._undecided(role)
        else:
            self._stages[role].succeeded(self.replicas[role], self._trials.get(role))

    def _undecided(self, role: str) -> None:
        self._stages[role].undecided(self.replicas[role], self._trials.pop(role, None))

    def refused(self, role: str, code: ErrorCode) -> None:
        """The replica of a stage has refused a request; of a role that it does not have, nothing
        follows."""
        if role in self.replicas:
            self._stages[role].refusals[code] += 1

    def failed(self, role: str) -> None:
        """The session has failed there; of a role that it does not have, nothing follows."""
        if role in self.replicas:
            self._stages[role].failed(self.replicas[role], self._trials.get(role))
