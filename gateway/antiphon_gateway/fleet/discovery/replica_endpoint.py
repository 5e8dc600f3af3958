"""One replica's place, and what tells the fleet which there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

EndpointState = Literal["ready", "not_ready", "terminating"]
STATES: tuple[EndpointState, ...] = get_args(EndpointState)


@dataclass(frozen=True)
class Endpoint:
    """A replica of the stage `role`, as its source knows it.

    `uid` tells replicas apart that had the same address one after the other: a pod's uid, or the
    address where there is nothing better. `node` and `zone` are empty where they are not known.
    `ready` and `terminating` are an EndpointSlice's conditions: whether new sessions may go there,
    and whether it is leaving. Whether the replica does serve is told by its own health stream.
    """

    role: str
    uid: str
    # gRPC target: host:port, an IPv6 host in brackets.
    address: str
    node: str = ""
    zone: str = ""
    ready: bool = True
    terminating: bool = False

    @property
    def state(self) -> EndpointState:
        """The conditions in a word."""
        if self.terminating:
            return "terminating"
        return "ready" if self.ready else "not_ready"


class Discovery(Protocol):
    """A source of endpoints. One that fails tells nothing new: what it told last holds."""

    @property
    def last_sync(self) -> float | None:
        """When the source last told all there are, in Unix seconds; None before the first time."""
        ...

    def watch(self) -> AsyncIterator[frozenset[Endpoint]]:
        """All endpoints, whenever they have changed: each set replaces the last. Never ends.

        It begins with the first set that is known. Who is slow gets the newest one, not every
        one between. For one reader; cancelling it leaves nothing running.
        """
        ...
