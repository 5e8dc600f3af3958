"""The resources that a request needs to be admitted. This module performs no I/O."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from antiphon_gateway.admission.priority import Priority

CALLS = ""
"""The role of the gateway itself."""


class Urgency(enum.IntEnum):
    """The urgency of a request, which determines its head start. The members are listed from the
    longest head start to the shortest.
    """

    TURN = 0
    AUDIO = 1
    TEXT = 2


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A request for `count` calls and as many slots of each role. While it is waiting, it occupies
    `size_bytes` bytes of memory.

    It must start within `start_within_s` seconds and end within `finish_within_s` seconds. `key` is
    the name of the API key, which is the same for all requests without a key.
    """

    roles: frozenset[str]
    urgency: Urgency = Urgency.TEXT
    count: int = 1
    size_bytes: int = 0
    start_within_s: float = math.inf
    finish_within_s: float = math.inf
    key: str = ""
    priority: Priority = Priority.NORMAL


@dataclass(slots=True, eq=False)
class QueueEntry:
    """A new, waiting or granted request.

    `rank` is its position among the requests of its key, and `latest` is the latest time at which
    it may start. `charged_s` is how much time its key was charged for it.
    """

    number: int
    request: AdmissionRequest
    rank: float
    latest: float
    # The time at which each of its slots was taken, by role.
    held: dict[str, float] = field(default_factory=dict)
    opened: bool = False
    charged_s: float = 0.0

    @property
    def order(self) -> tuple[float, int]:
        """The sort key among the requests of its API key."""
        return self.rank, self.number

    @property
    def needs(self) -> Iterator[str]:
        """The roles that the request needs."""
        yield CALLS
        yield from self.request.roles
