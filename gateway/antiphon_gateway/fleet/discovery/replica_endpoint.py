"""The endpoint of a replica, and the interface that every discovery implements."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

EndpointState = Literal["ready", "not_ready", "terminating"]
STATES: tuple[EndpointState, ...] = get_args(EndpointState)


@dataclass(frozen=True)
class Endpoint:
    """A replica of the stage `role`, as reported by discovery.

    An address can be reused by another replica, so `uid` identifies the replica. It is the UID of
    the pod, or the address if there is no UID. `node` and `zone` are empty if they are unknown.
    `ready` and `terminating` correspond to the conditions of an EndpointSlice. They state whether
    the replica may receive new sessions, and whether it is shutting down. Whether the replica is
    serving is reported by its own health stream.
    """

    role: str
    uid: str
    # A gRPC target of the form host:port. An IPv6 address is enclosed in brackets.
    address: str
    node: str = ""
    zone: str = ""
    ready: bool = True
    terminating: bool = False

    @property
    def state(self) -> EndpointState:
        """The state of the endpoint, derived from its conditions."""
        if self.terminating:
            return "terminating"
        return "ready" if self.ready else "not_ready"


class Discovery(Protocol):
    """A source of endpoints. If it fails, its last report remains valid."""

    @property
    def last_sync(self) -> float | None:
        """The time of the last complete report in Unix seconds, or None if there was none."""
        ...

    def watch(self) -> AsyncIterator[frozenset[Endpoint]]:
        """Yield the complete set of endpoints, first as soon as it is known and then after each
        change. This never ends.

        A slow reader receives only the latest set. There can be only one reader at a time.
        Cancelling it releases all resources.
        """
        ...
