"""The endpoint of a replica and the interface that every discovery implements."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

EndpointState = Literal["ready", "not_ready", "terminating"]
STATES: tuple[EndpointState, ...] = get_args(EndpointState)


@dataclass(frozen=True)
class Endpoint:
    """A replica of the stage `role`, as reported by discovery.

    Another replica may use the same address later, so a replica is identified by its `uid`. This is
    the UID of the pod, or the address if there is none. `node` and `zone` are empty if they aren't
    known. `ready` and `terminating` are conditions of an EndpointSlice. They state whether the
    replica can receive new sessions and whether it is shutting down. The replica's own health
    stream reports whether it is serving.
    """

    role: str
    uid: str
    # A gRPC target of the form host:port. IPv6 addresses are enclosed in brackets.
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
    """A source of endpoints. If it fails, its last report stays valid."""

    @property
    def last_sync(self) -> float | None:
        """When the last complete report was received, in Unix seconds. None if there hasn't been
        one.
        """
        ...

    def watch(self) -> AsyncIterator[frozenset[Endpoint]]:
        """Yield the complete set of endpoints, first as soon as it is known, and then after each
        change. This never ends.

        If the reader is slow, it receives only the latest set. There can be only one reader at a
        time. All resources are released when it is cancelled.
        """
        ...
