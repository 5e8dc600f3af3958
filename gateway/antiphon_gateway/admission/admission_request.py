"""The resources that a request needs before it can be admitted. This module performs no I/O."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from antiphon_gateway.admission.priority import Priority

CALLS = ""
"""The role that represents the gateway itself."""


class Urgency(enum.IntEnum):
    """How urgent a request is, which determines its head start. Members are listed in descending
    order of urgency.
    """

    TURN = 0
    AUDIO = 1
    TEXT = 2


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A request for `count` calls and the same number of slots for each role. It takes up
    `size_bytes` bytes of memory while it is waiting.

    The request must start within `start_within_s` seconds and end within `finish_within_s` seconds.
    `key` is the name of its API key. All requests without a key share the same name.
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
    """A request that is new, waiting or granted.

    `rank` is its position among the requests of its key, and `latest` is the latest time at which
    it can start. `charged_s` is the time in seconds that its key has been charged for it.
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
