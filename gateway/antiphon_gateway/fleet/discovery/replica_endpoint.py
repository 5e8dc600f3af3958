"""An endpoint of a replica, and the interface of its discovery."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

EndpointState = Literal["ready", "not_ready", "terminating"]
STATES: tuple[EndpointState, ...] = get_args(EndpointState)


@dataclass(frozen=True)
class Endpoint:
    """A replica of the stage `role`, as reported by discovery.

    `uid` distinguishes replicas that have the same address one after another: the uid of a pod, or
    the address if there is nothing better. `node` and `zone` are empty if they are not known.
    `ready` and `terminating` are conditions of an EndpointSlice: whether new sessions may use the
    replica, and whether it is shutting down. The replica's own health stream reports whether it is
    serving.
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
    """A source of endpoints. After an error, its last report stays valid."""

    @property
    def last_sync(self) -> float | None:
        """The time of the last complete report, in Unix seconds; None before the first."""
        ...

    def watch(self) -> AsyncIterator[frozenset[Endpoint]]:
        """All endpoints, whenever they have changed: each set replaces the last. Never ends.

        It begins with the first set that is known. Who is slow gets the newest one, not every
        one between. For one reader; cancelling it leaves nothing running.
        """
        ...
